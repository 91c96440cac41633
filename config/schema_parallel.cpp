#include "config/schema_keys.h"

namespace weft::recipes::keys {
namespace {

constexpr double kSecondsADay = 86'400;

} // namespace

std::vector<Key> run_keys() {
  return {
      {.path = "name",
       .field = member<&Recipe::name>,
       .doc = "Names the run and its folder: letters, digits, `.`, `_`, `-`.",
       .computed_default = "the file's name"},
      {.path = "device",
       .field = member<&Recipe::device>,
       .doc = "Where tensors live.",
       .choices = {"cpu", "cuda"}},
      {.path = "seed",
       .field = member<&Recipe::seed>,
       .doc = "Of initial weights and of the order of samples; the same on "
              "every mesh.",
       .range = at_least(0)},
      {.path = "products",
       .field = member<&Recipe::products>,
       .doc = "The library that multiplies float32 matrices on the CPU. auto: "
              "onednn where it is faster (AMD's processors, where libtorch's "
              "products keep to AVX2), else libtorch. The two differ in the "
              "last bits of a result. A resumed run keeps what it began with.",
       .choices = {"auto", "libtorch", "onednn"}},
      {.path = "cost_model",
       .field = member<&Recipe::cost_model>,
       .doc = "Where prices of links come from, by which redistributions are "
              "planned. default: a fixed table. measure: a few collectives, "
              "timed at the start of a new run; a resumed one keeps them.",
       .choices = {"default", "measure"}},
      {.path = "output_dir",
       .field = member<&Recipe::output_dir>,
       .doc = "The run's folder.",
       .computed_default = "outputs/<name>"},
      {.path = "mesh.dp",
       .field = member<&Recipe::mesh, &MeshConfig::dp>,
       .doc = "Replicas that see different samples. -1: the rest of the world.",
       .unit = "ranks",
       .range = or_else(-1, between(1, kMaxSize))},
      {.path = "mesh.dp_shard",
       .field = member<&Recipe::mesh, &MeshConfig::dp_shard>,
       .doc =
           "Ranks that see different samples, too, and over which "
           "parameters, gradients and the optimizer's state are divided. "
           "-1: the rest of the world; mesh.dp is 1 then unless it is given. "
           "Above 1 it does not go with mesh.dp above 1 yet.",
       .unit = "ranks",
       .range = or_else(-1, between(1, kMaxSize))},
      {.path = "mesh.tp",
       .field = member<&Recipe::mesh, &MeshConfig::tp>,
       .doc = "Ranks that share one replica's matrices. -1: the rest of the "
              "world.",
       .unit = "ranks",
       .range = or_else(-1, between(1, kMaxSize))},
  };
}

std::vector<Key> tp_keys() {
  return {
      {.path = "tp.sequence_parallel",
       .field = member<&Recipe::tp, &TpConfig::sequence_parallel>,
       .doc = "Keep activations between the blocks sharded along the "
              "sequence.",
       .only =
           {.key = "model.type",
            .values = {"llama", "gpt2", "moe", "vit"},
            .or_linked_in = true}},
      {.path = "tp.loss_parallel",
       .field = member<&Recipe::tp, &TpConfig::loss_parallel>,
       .doc = "Compute the loss on logits that stay sharded along the "
              "vocabulary or the classes."},
      {.path = "tp.async",
       .field = member<&Recipe::tp, &TpConfig::async_tp>,
       .doc = "Overlap the collectives within a layer with its arithmetic: "
              "gradients of weights come while their input's gradient is "
              "reduced (auto, on); gathers and reduce_scatters go in parts "
              "beside the parts of a product, always (on) or where the cost "
              "model says that it saves time (auto). auto is off on GPUs, "
              "where it was never measured.",
       .choices = {"auto", "on", "off"}},
  };
}

std::vector<Key> ddp_keys() {
  return {
      {.path = "ddp.bucket_cap_mb",
       .field = member<&Recipe::ddp, &DdpConfig::bucket_cap_mb>,
       .doc = "Gradients are reduced in buckets of this size.",
       .unit = "MiB",
       .range = above(0, 1 << 20)},
      {.path = "ddp.bucket_mode",
       .field = member<&Recipe::ddp, &DdpConfig::bucket_mode>,
       .doc = "What becomes of the gradients of a bucket. concatenated: copied "
              "into one tensor. coalesced: reduced where they are, in one "
              "message. per_parameter: each by itself.",
       .choices = {"concatenated", "coalesced", "per_parameter"}},
      {.path = "ddp.auto_bucketing",
       .field = member<&Recipe::ddp, &DdpConfig::auto_bucketing>,
       .doc = "Choose the size of buckets from the times of the first backward "
              "and of a few reductions; the choice is kept in checkpoints."},
      {.path = "ddp.gradient_as_bucket_view",
       .field = member<&Recipe::ddp, &DdpConfig::gradient_as_bucket_view>,
       .doc = "Gradients lie in the buckets after backward, not beside them."},
      {.path = "ddp.batched_grad_copy",
       .field = member<&Recipe::ddp, &DdpConfig::batched_grad_copy>,
       .doc = "Copy the gradients of a bucket all at once."},
      {.path = "ddp.static_graph",
       .field = member<&Recipe::ddp, &DdpConfig::static_graph>,
       .doc = "Take the first step's graph for that of every step."},
      {.path = "ddp.check_for_nan_in_grad",
       .field = member<&Recipe::ddp, &DdpConfig::check_for_nan_in_grad>,
       .doc = "Fail where a gradient is NaN or infinite, naming the parameter "
              "and the rank; costs a pass over the gradients."},
      {.path = "ddp.comm_hook",
       .field = member<&Recipe::ddp, &DdpConfig::comm_hook>,
       .doc = "How buckets are reduced: as they are, in fewer bits, or by "
              "factors of low rank (PowerSGD).",
       .choices =
           {"none",
            "bf16_compress",
            "fp16_compress",
            "quantization_pertensor",
            "quantization_perchannel",
            "powersgd",
            "batched_powersgd"}},
      {.path = "ddp.power_sgd_rank",
       .field = member<&Recipe::ddp, &DdpConfig::power_sgd_rank>,
       .doc = "Of PowerSGD's factors.",
       .range = between(1, 1 << 20)},
      {.path = "ddp.power_sgd_start_iter",
       .field = member<&Recipe::ddp, &DdpConfig::power_sgd_start_iter>,
       .doc = "Steps without compression before PowerSGD begins.",
       .unit = "steps",
       .range = at_least(2)},
      {.path = "ddp.param_dtype",
       .field = member<&Recipe::ddp, &DdpConfig::param_dtype>,
       .doc = "Compute forward and backward in this type; parameters, their "
              "gradients and the optimizer stay in train.dtype. float16 is "
              "not offered: without a gradient scaler, small gradients "
              "become 0 in it.",
       .choices = {"none", "bfloat16"}},
      {.path = "ddp.reduce_dtype",
       .field = member<&Recipe::ddp, &DdpConfig::reduce_dtype>,
       .doc = "Reduce gradients in this type. none: in param_dtype. float16 "
              "is not offered, as in ddp.param_dtype.",
       .choices = {"none", "float32", "bfloat16"}},
  };
}

std::vector<Key> fsdp_keys() {
  constexpr int64_t kMostAhead = 1000;
  return {
      {.path = "fsdp.units",
       .field = member<&Recipe::fsdp, &FsdpConfig::units>,
       .doc = "What is gathered in one message: patterns of modules, such as "
              "`model.layers.*`. [auto]: each block, the embedding unless it "
              "is tied, and what is left."},
      {.path = "fsdp.reshard_after_forward",
       .field = member<&Recipe::fsdp, &FsdpConfig::reshard_after_forward>,
       .doc = "Whether other ranks' parts are given away after forward and "
              "gathered once more in backward. auto: those of all units but "
              "of what is left.",
       .choices = {"auto", "always", "never"}},
      {.path = "fsdp.forward_prefetch",
       .field = member<&Recipe::fsdp, &FsdpConfig::forward_prefetch>,
       .doc = "Units gathered ahead in forward.",
       .unit = "units",
       .range = between(0, kMostAhead)},
      {.path = "fsdp.backward_prefetch",
       .field = member<&Recipe::fsdp, &FsdpConfig::backward_prefetch>,
       .doc = "When the next unit of backward is gathered. pre: before the "
              "current one computes. post: after it. none: when it is used.",
       .choices = {"pre", "post", "none"}},
      {.path = "fsdp.reduce_in_flight",
       .field = member<&Recipe::fsdp, &FsdpConfig::reduce_in_flight>,
       .doc = "Reductions of gradients under way at once.",
       .unit = "units",
       .range = between(0, kMostAhead)},
      {.path = "fsdp.accumulate",
       .field = member<&Recipe::fsdp, &FsdpConfig::accumulate>,
       .doc = "Gradients of several micro-batches. sharded: each is reduced, "
              "and memory stays divided. local: whole on each rank until the "
              "last one, as without dp_shard.",
       .choices = {"sharded", "local"}},
  };
}

std::vector<Key> comm_keys() {
  return {
      {.path = "comm.timeout_s",
       .field = member<&Recipe::comm, &CommConfig::timeout_s>,
       .doc = "How long ranks wait for each other, at the start and in every "
              "collective, before the run ends with exit code 150.",
       .unit = "s",
       .range = between(1, kSecondsADay)},
  };
}

std::vector<Key> link_keys() {
  constexpr Range kLatency = between(0, 1e9);
  constexpr Range kBandwidth = between(0, 1e6);
  return {
      {.path = "links.dp_latency_us",
       .field = member<&Recipe::links, &LinksConfig::dp_latency_us>,
       .doc = "Of a message between replicas.",
       .unit = "us",
       .range = kLatency},
      {.path = "links.dp_bandwidth_gb_s",
       .field = member<&Recipe::links, &LinksConfig::dp_bandwidth_gb_s>,
       .doc = "Between replicas, one way.",
       .unit = "1e9 bytes/s",
       .range = kBandwidth},
      {.path = "links.tp_latency_us",
       .field = member<&Recipe::links, &LinksConfig::tp_latency_us>,
       .doc = "Of a message inside a replica.",
       .unit = "us",
       .range = kLatency},
      {.path = "links.tp_bandwidth_gb_s",
       .field = member<&Recipe::links, &LinksConfig::tp_bandwidth_gb_s>,
       .doc = "Inside a replica, one way.",
       .unit = "1e9 bytes/s",
       .range = kBandwidth},
  };
}

} // namespace weft::recipes::keys
