#include "config/schema_keys.h"

namespace weft::config::keys {
namespace {

constexpr double kSecondsADay = 86'400;

} // namespace

std::vector<Key> run_keys() {
  return {
      {.path = "name",
       .field = member<&Recipe::name>,
       .doc = "The name of the run and of its folder: letters, digits, `.`, "
              "`_` and `-`.",
       .computed_default = "the file's name"},
      {.path = "device",
       .field = choice<&Recipe::device>,
       .doc = "The device type of all tensors."},
      {.path = "seed",
       .field = member<&Recipe::seed>,
       .doc = "The seed of the initial weights and of the sample order. Both "
              "are identical on every mesh.",
       .range = at_least(0)},
      {.path = "products",
       .field = choice<&Recipe::products>,
       .doc = "The library for float32 matmuls on the CPU. auto selects onednn "
              "where it is faster (AMD processors, on which libtorch's matmuls "
              "use only AVX2) and libtorch elsewhere. The two differ in the "
              "last bits of a result. A resumed run keeps its library."},
      {.path = "cost_model",
       .field = choice<&Recipe::cost_model>,
       .doc =
           "The source of the link costs with which redistributions are "
           "planned. default is a fixed table. measure times a few collectives "
           "when a new run starts; a resumed run keeps the measured costs."},
      {.path = "output_dir",
       .field = member<&Recipe::output_dir>,
       .doc = "The run's folder.",
       .computed_default = "outputs/<name>"},
      {.path = "mesh.dp",
       .field = member<&Recipe::mesh, &MeshConfig::dp>,
       .doc = "The number of data-parallel replicas. -1 means the number of "
              "ranks divided by the other mesh dims.",
       .unit = "ranks",
       .range = or_else(-1, between(1, kMaxSize))},
      {.path = "mesh.dp_shard",
       .field = member<&Recipe::mesh, &MeshConfig::dp_shard>,
       .doc = "The number of ranks over which fully sharded data parallelism "
              "shards the parameters, gradients and optimizer state. Each of "
              "them gets different samples. -1 means the number of ranks "
              "divided by the other mesh dims; mesh.dp then defaults to 1. If "
              "mesh.dp is above 1, the shards are replicated that many times "
              "(hybrid sharding).",
       .unit = "ranks",
       .range = or_else(-1, between(1, kMaxSize))},
      {.path = "mesh.tp",
       .field = member<&Recipe::mesh, &MeshConfig::tp>,
       .doc = "The number of tensor-parallel ranks in a replica. -1 means the "
              "number of ranks divided by the other mesh dims.",
       .unit = "ranks",
       .range = or_else(-1, between(1, kMaxSize))},
  };
}

std::vector<Key> tp_keys() {
  return {
      {.path = "tp.sequence_parallel",
       .field = member<&Recipe::tp, &TpConfig::sequence_parallel>,
       .doc = "Shards the activations between blocks along the sequence.",
       .only =
           {.key = "model.type",
            .values = {"llama", "gpt2", "moe", "vit"},
            .or_linked_in = true}},
      {.path = "tp.loss_parallel",
       .field = member<&Recipe::tp, &TpConfig::loss_parallel>,
       .doc = "Computes the loss on logits that stay sharded along the "
              "vocabulary or the classes."},
      {.path = "tp.async",
       .field = choice<&Recipe::tp, &TpConfig::async_tp>,
       .doc = "Overlaps the collectives of a layer with its matmuls. auto and "
              "on compute weight gradients while the input gradient is "
              "reduced. on also splits all_gathers and reduce_scatters into "
              "chunks that overlap with chunks of the matmul; auto does so "
              "only if the cost model predicts a gain. On GPUs auto means off, "
              "because it has not been measured there.",
       .effect = {.key = "mesh.tp", .values = {"1"}, .is_not = true}},
  };
}

// The documentation of keys that are in both sections, ddp and fsdp.
constexpr const char* kParamDtypeDoc =
    "The dtype of forward and backward. Parameters, gradients and optimizer "
    "state stay float32. none means train.dtype. float16 is not supported "
    "because small gradients become 0 without a gradient scaler.";
constexpr const char* kReduceDtypeDoc =
    "The dtype in which gradients are reduced. none means that of forward and "
    "backward. float16 is not supported, as for param_dtype.";

std::vector<Key> ddp_keys() {
  return {
      {.path = "ddp.bucket_cap_mb",
       .field = member<&Recipe::ddp, &DdpConfig::bucket_cap_mb>,
       .doc = "The size of a gradient bucket.",
       .unit = "MiB",
       .range = above(0, 1 << 20)},
      {.path = "ddp.bucket_mode",
       .field = choice<&Recipe::ddp, &DdpConfig::bucket_mode>,
       .doc = "How the gradients of a bucket are reduced. concatenated copies "
              "them into one tensor. coalesced reduces them in place in one "
              "message. per_parameter reduces each gradient separately."},
      {.path = "ddp.auto_bucketing",
       .field = member<&Recipe::ddp, &DdpConfig::auto_bucketing>,
       .doc = "Chooses the bucket size from the timings of the first backward "
              "and of a few reductions. Checkpoints store the choice."},
      {.path = "ddp.gradient_as_bucket_view",
       .field = member<&Recipe::ddp, &DdpConfig::gradient_as_bucket_view>,
       .doc = "Makes gradients views of the buckets instead of copies."},
      {.path = "ddp.batched_grad_copy",
       .field = member<&Recipe::ddp, &DdpConfig::batched_grad_copy>,
       .doc = "Copies all gradients of a bucket in one call."},
      {.path = "ddp.static_graph",
       .field = member<&Recipe::ddp, &DdpConfig::static_graph>,
       .doc =
           "Assumes that every step has the autograd graph of the first step."},
      {.path = "ddp.check_for_nan_in_grad",
       .field = member<&Recipe::ddp, &DdpConfig::check_for_nan_in_grad>,
       .doc =
           "Fails if a gradient is NaN or infinite. The error names the "
           "parameter and the rank. This costs one pass over the gradients."},
      {.path = "ddp.comm_hook",
       .field = choice<&Recipe::ddp, &DdpConfig::comm_hook>,
       .doc = "The communication hook that reduces a bucket: none, a "
              "compression to fewer bits, or low-rank factors (PowerSGD)."},
      {.path = "ddp.power_sgd_rank",
       .field = member<&Recipe::ddp, &DdpConfig::power_sgd_rank>,
       .doc = "The rank of the PowerSGD approximation.",
       .range = between(1, 1 << 20),
       .effect =
           {.key = "ddp.comm_hook",
            .values = {"powersgd", "batched_powersgd"}}},
      {.path = "ddp.power_sgd_start_iter",
       .field = member<&Recipe::ddp, &DdpConfig::power_sgd_start_iter>,
       .doc = "The number of uncompressed steps before PowerSGD starts.",
       .unit = "steps",
       .range = at_least(2),
       .effect =
           {.key = "ddp.comm_hook",
            .values = {"powersgd", "batched_powersgd"}}},
      {.path = "ddp.param_dtype",
       .field = choice<&Recipe::ddp, &DdpConfig::param_dtype>,
       .doc = kParamDtypeDoc},
      {.path = "ddp.reduce_dtype",
       .field = choice<&Recipe::ddp, &DdpConfig::reduce_dtype>,
       .doc = kReduceDtypeDoc},
  };
}

std::vector<Key> fsdp_keys() {
  constexpr int64_t kMostAhead = 1000;
  return {
      {.path = "fsdp.units",
       .field = member<&Recipe::fsdp, &FsdpConfig::units>,
       .doc = "Glob patterns of the modules that are each gathered in one "
              "message, such as `model.layers.*`. [auto] makes a unit of each "
              "block, of the embedding (unless it is tied) and of the "
              "remaining parameters."},
      {.path = "fsdp.reshard_after_forward",
       .field = choice<&Recipe::fsdp, &FsdpConfig::reshard_after_forward>,
       .doc = "Whether a unit frees its unsharded parameters after forward and "
              "gathers them again in backward. auto does so for all units "
              "except the one with the remaining parameters."},
      {.path = "fsdp.reshard_to",
       .field = member<&Recipe::fsdp, &FsdpConfig::reshard_to>,
       .doc = "The number of adjacent ranks, such as those of a host, from "
              "which backward gathers a unit. Each of them keeps its part of "
              "the unsharded parameters after forward. 0 means that backward "
              "gathers from all mesh.dp_shard ranks.",
       .unit = "ranks",
       .range = or_else(0, between(2, kMaxSize)),
       .effect =
           {.key = "fsdp.reshard_after_forward",
            .values = {"never"},
            .is_not = true}},
      {.path = "fsdp.forward_prefetch",
       .field = member<&Recipe::fsdp, &FsdpConfig::forward_prefetch>,
       .doc = "The number of units that are gathered ahead in forward.",
       .unit = "units",
       .range = between(0, kMostAhead)},
      {.path = "fsdp.backward_prefetch",
       .field = choice<&Recipe::fsdp, &FsdpConfig::backward_prefetch>,
       .doc =
           "When backward gathers the next unit. pre gathers it before the "
           "current unit computes, post after it, none when the unit is used."},
      {.path = "fsdp.reduce_in_flight",
       .field = member<&Recipe::fsdp, &FsdpConfig::reduce_in_flight>,
       .doc =
           "The number of gradient reductions that may run at the same time.",
       .unit = "units",
       .range = between(0, kMostAhead)},
      {.path = "fsdp.accumulate",
       .field = choice<&Recipe::fsdp, &FsdpConfig::accumulate>,
       .doc = "How gradients of several micro-batches accumulate. sharded "
              "reduces after every micro-batch, so gradients stay sharded. "
              "local keeps full gradients on each rank until the last "
              "micro-batch, as without dp_shard."},
      {.path = "fsdp.comm_hook",
       .field = choice<&Recipe::fsdp, &FsdpConfig::comm_hook>,
       .doc = "The communication hook that sums gradients over mesh.dp. The "
              "compressions send half the bytes of float32.",
       .effect = {.key = "mesh.dp", .values = {"1"}, .is_not = true}},
      {.path = "fsdp.param_dtype",
       .field = choice<&Recipe::fsdp, &FsdpConfig::param_dtype>,
       .doc = kParamDtypeDoc},
      {.path = "fsdp.reduce_dtype",
       .field = choice<&Recipe::fsdp, &FsdpConfig::reduce_dtype>,
       .doc = kReduceDtypeDoc},
  };
}

std::vector<Key> comm_keys() {
  return {
      {.path = "comm.timeout_s",
       .field = member<&Recipe::comm, &CommConfig::timeout_s>,
       .doc = "The time that ranks wait for each other at the start and in "
              "every collective. After it the run ends with exit code 150.",
       .unit = "s",
       .range = between(1, kSecondsADay)},
  };
}

std::vector<Key> elastic_keys() {
  return {
      {.path = "elastic.batch",
       .field = choice<&Recipe::elastic, &ElasticConfig::batch>,
       .doc = "How the groups divide the global batch. none means that groups "
              "do not come and go. With exact and fixed each step has the "
              "same samples. exact divides it into lanes and gives the same "
              "bits whichever groups are lost. fixed divides the "
              "micro-batches of the global batch over the groups that are "
              "there; the order of additions depends on them."},
      {.path = "elastic.lanes",
       .field = member<&Recipe::elastic, &ElasticConfig::lanes>,
       .doc = "With batch exact: into how many parts a step is divided. Each "
              "is computed as a data-parallel rank computes its part, and a "
              "group computes one or more of them. 0 means mesh.dp. Runs with "
              "the same number, and the same OMP_NUM_THREADS, have the same "
              "bits on any number of groups.",
       .range = at_least(0)},
      {.path = "elastic.min_groups",
       .field = member<&Recipe::elastic, &ElasticConfig::min_groups>,
       .doc = "The fewest groups that train. If fewer are left, they wait for "
              "others.",
       .range = at_least(1)},
      {.path = "elastic.join_timeout_s",
       .field = member<&Recipe::elastic, &ElasticConfig::join_timeout_s>,
       .doc = "How long fewer groups than min_groups that have trained wait. "
              "Then they save and end with exit code 150, and weftrun starts "
              "them again.",
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
       .doc = "The latency of a message between replicas.",
       .unit = "us",
       .range = kLatency},
      {.path = "links.dp_bandwidth_gb_s",
       .field = member<&Recipe::links, &LinksConfig::dp_bandwidth_gb_s>,
       .doc = "The one-way bandwidth between replicas.",
       .unit = "1e9 bytes/s",
       .range = kBandwidth},
      {.path = "links.tp_latency_us",
       .field = member<&Recipe::links, &LinksConfig::tp_latency_us>,
       .doc = "The latency of a message within a replica.",
       .unit = "us",
       .range = kLatency},
      {.path = "links.tp_bandwidth_gb_s",
       .field = member<&Recipe::links, &LinksConfig::tp_bandwidth_gb_s>,
       .doc = "The one-way bandwidth within a replica.",
       .unit = "1e9 bytes/s",
       .range = kBandwidth},
  };
}

} // namespace weft::config::keys
