#include "recipes/config/schema.h"

#include <algorithm>

namespace weft::recipes {
namespace {

// member<&Recipe::mesh, &MeshConfig::dp>(recipe) is recipe.mesh.dp.
template <auto... Members>
auto& member(Recipe& recipe) {
  return (recipe.*....*Members);
}

constexpr Range at_least(double least) {
  return {.least = least};
}

constexpr Range between(double least, double most) {
  return {.least = least, .most = most};
}

constexpr Range above(double least, double most) {
  return {.least = least, .most = most, .least_excluded = true};
}

constexpr Range or_else(int64_t special, Range range) {
  range.special = special;
  return range;
}

constexpr double kMostSize = 1 << 24;
constexpr double kMostCount = 1e9;
constexpr double kSecondsADay = 86'400;

std::vector<Key> run_keys() {
  return {
      {.path = "name",
       .field = member<&Recipe::name>,
       .doc = "Names the run and its folder: letters, digits, `.`, `_`, `-`.",
       .later_default = "the file's name"},
      {.path = "device",
       .field = member<&Recipe::device>,
       .doc = "Where tensors live.",
       .choices = {"cpu", "cuda"}},
      {.path = "seed",
       .field = member<&Recipe::seed>,
       .doc = "Of initial weights and of the order of samples; the same on "
              "every mesh.",
       .range = at_least(0)},
      {.path = "cost_model",
       .field = member<&Recipe::cost_model>,
       .doc = "Where prices of links come from, by which redistributions are "
              "planned. default: a fixed table. measure: a few collectives, "
              "timed at the start of a new run; a resumed one keeps them.",
       .choices = {"default", "measure"}},
      {.path = "output_dir",
       .field = member<&Recipe::output_dir>,
       .doc = "The run's folder.",
       .later_default = "outputs/<name>"},
      {.path = "mesh.dp",
       .field = member<&Recipe::mesh, &MeshConfig::dp>,
       .doc = "Replicas that see different samples. -1: the rest of the world.",
       .unit = "ranks",
       .range = or_else(-1, between(1, kMostSize))},
      {.path = "mesh.tp",
       .field = member<&Recipe::mesh, &MeshConfig::tp>,
       .doc = "Ranks that share one replica's matrices. -1: the rest of the "
              "world.",
       .unit = "ranks",
       .range = or_else(-1, between(1, kMostSize))},
  };
}

std::vector<Key> model_keys() {
  return {
      {.path = "model.type",
       .field = member<&Recipe::model, &ModelConfig::type>,
       .doc = "The architecture.",
       .choices = {"llama"}},
      {.path = "model.dim",
       .field = member<&Recipe::model, &ModelConfig::dim>,
       .doc = "Width of the residual stream; a multiple of heads, with an even "
              "quotient.",
       .range = between(1, kMostSize),
       .required = true},
      {.path = "model.layers",
       .field = member<&Recipe::model, &ModelConfig::layers>,
       .doc = "Transformer blocks.",
       .range = between(1, 100'000),
       .required = true},
      {.path = "model.heads",
       .field = member<&Recipe::model, &ModelConfig::heads>,
       .doc = "Attention heads; a multiple of mesh.tp.",
       .range = between(1, kMostSize),
       .required = true},
      {.path = "model.kv_heads",
       .field = member<&Recipe::model, &ModelConfig::kv_heads>,
       .doc = "Heads of keys and values; divides heads, a multiple of mesh.tp. "
              "0: as many as heads.",
       .range = or_else(0, between(1, kMostSize))},
      {.path = "model.ffn_dim",
       .field = member<&Recipe::model, &ModelConfig::ffn_dim>,
       .doc = "Width inside the feed-forward layers.",
       .range = between(1, kMostSize),
       .required = true},
      {.path = "model.vocab_size",
       .field = member<&Recipe::model, &ModelConfig::vocab_size>,
       .doc = "Tokens the model knows; at least the tokenizer's (byte: 256).",
       .range = between(1, kMostSize)},
      {.path = "model.rope_theta",
       .field = member<&Recipe::model, &ModelConfig::rope_theta>,
       .doc = "Base of the rotary embedding's wavelengths.",
       .range = above(0, 1e12)},
      {.path = "model.norm_eps",
       .field = member<&Recipe::model, &ModelConfig::norm_eps>,
       .doc = "Added to the mean square in RMSNorm.",
       .range = above(0, 1)},
      {.path = "model.tie_embeddings",
       .field = member<&Recipe::model, &ModelConfig::tie_embeddings>,
       .doc = "Use the token embedding as the output layer too."},
      {.path = "model.attention_dropout",
       .field = member<&Recipe::model, &ModelConfig::attention_dropout>,
       .doc = "Probability that training drops an attention weight; which ones "
              "is the same on every mesh.",
       .range = between(0, 0.999)},
  };
}

std::vector<Key> parallel_keys() {
  return {
      {.path = "tp.sequence_parallel",
       .field = member<&Recipe::tp, &TpConfig::sequence_parallel>,
       .doc =
           "Keep activations between the blocks sharded along the sequence."},
      {.path = "tp.loss_parallel",
       .field = member<&Recipe::tp, &TpConfig::loss_parallel>,
       .doc = "Compute the loss on logits that stay sharded along the "
              "vocabulary."},
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
      {.path = "ddp.power_sgd_start",
       .field = member<&Recipe::ddp, &DdpConfig::power_sgd_start>,
       .doc = "Steps without compression before PowerSGD begins.",
       .unit = "steps",
       .range = at_least(2)},
      {.path = "ddp.param_dtype",
       .field = member<&Recipe::ddp, &DdpConfig::param_dtype>,
       .doc = "Compute forward and backward in this type; parameters, their "
              "gradients and the optimizer stay in train.dtype.",
       .choices = {"none", "bfloat16", "float16"}},
      {.path = "ddp.reduce_dtype",
       .field = member<&Recipe::ddp, &DdpConfig::reduce_dtype>,
       .doc = "Reduce gradients in this type. none: in param_dtype.",
       .choices = {"none", "float32", "bfloat16", "float16"}},
      {.path = "comm.timeout_s",
       .field = member<&Recipe::comm, &CommConfig::timeout_s>,
       .doc = "How long ranks wait for each other, at the start and in every "
              "collective, before the run ends with exit code 150.",
       .unit = "s",
       .range = between(1, kSecondsADay)},
  };
}

std::vector<Key> data_keys() {
  return {
      {.path = "data.type",
       .field = member<&Recipe::data, &DataConfig::type>,
       .doc = "What the files hold.",
       .choices = {"text"}},
      {.path = "data.paths",
       .field = member<&Recipe::data, &DataConfig::paths>,
       .doc = "Files, folders (with all below them, hidden ones left out) and "
              "globs (`**` too), relative to the current directory.",
       .required = true},
      {.path = "data.tokenizer",
       .field = member<&Recipe::data, &DataConfig::tokenizer>,
       .doc = "How text becomes tokens; byte: every byte is one.",
       .choices = {"byte"}},
      {.path = "data.sequence_length",
       .field = member<&Recipe::data, &DataConfig::sequence_length>,
       .doc = "Length of a sample.",
       .unit = "tokens",
       .range = between(1, kMostSize)},
  };
}

std::vector<Key> train_keys() {
  return {
      {.path = "train.steps",
       .field = member<&Recipe::train, &TrainConfig::steps>,
       .doc = "Optimizer steps.",
       .range = between(1, kMostCount)},
      {.path = "train.global_batch_size",
       .field = member<&Recipe::train, &TrainConfig::global_batch_size>,
       .doc = "Samples a step takes, over all replicas; a multiple of dp x "
              "micro_batch_size, and that many times accumulated.",
       .unit = "samples",
       .range = between(1, kMostSize)},
      {.path = "train.micro_batch_size",
       .field = member<&Recipe::train, &TrainConfig::micro_batch_size>,
       .doc = "Samples a replica takes at once. 0: global_batch_size / dp.",
       .unit = "samples",
       .range = or_else(0, between(1, kMostSize))},
      {.path = "train.max_grad_norm",
       .field = member<&Recipe::train, &TrainConfig::max_grad_norm>,
       .doc = "Gradients are scaled down to this norm over all parameters. 0: "
              "never.",
       .range = at_least(0)},
      {.path = "train.dtype",
       .field = member<&Recipe::train, &TrainConfig::dtype>,
       .doc = "Of parameters and computation.",
       .choices = {"float32", "bfloat16"}},
      {.path = "train.log_every",
       .field = member<&Recipe::train, &TrainConfig::log_every>,
       .doc = "A line of progress each so many steps, where there is no "
              "terminal.",
       .unit = "steps",
       .range = between(1, kMostCount)},
  };
}

std::vector<Key> optimizer_keys() {
  return {
      {.path = "optimizer.type",
       .field = member<&Recipe::optimizer, &OptimizerConfig::type>,
       .doc = "The update rule.",
       .choices = {"adamw"}},
      {.path = "optimizer.lr",
       .field = member<&Recipe::optimizer, &OptimizerConfig::lr>,
       .doc = "Learning rate at the peak of the schedule.",
       .range = between(0, 1000)},
      {.path = "optimizer.betas",
       .field = member<&Recipe::optimizer, &OptimizerConfig::betas>,
       .doc = "Decay of the running averages of gradient and square.",
       .range = {.least = 0, .most = 1, .most_excluded = true}},
      {.path = "optimizer.eps",
       .field = member<&Recipe::optimizer, &OptimizerConfig::eps>,
       .doc = "Added to the denominator.",
       .range = between(0, 1)},
      {.path = "optimizer.weight_decay",
       .field = member<&Recipe::optimizer, &OptimizerConfig::weight_decay>,
       .doc = "Decoupled from the gradient.",
       .range = between(0, 1000)},
      {.path = "lr_schedule.type",
       .field = member<&Recipe::lr_schedule, &LrScheduleConfig::type>,
       .doc = "The way down from the peak to min_ratio.",
       .choices = {"cosine", "linear", "constant"}},
      {.path = "lr_schedule.warmup_steps",
       .field = member<&Recipe::lr_schedule, &LrScheduleConfig::warmup_steps>,
       .doc = "The rate grows linearly over the first so many steps.",
       .unit = "steps",
       .range = between(0, kMostCount)},
      {.path = "lr_schedule.min_ratio",
       .field = member<&Recipe::lr_schedule, &LrScheduleConfig::min_ratio>,
       .doc = "The last step's rate as a part of the peak; constant ignores "
              "it.",
       .range = between(0, 1)},
  };
}

std::vector<Key> lifecycle_keys() {
  return {
      {.path = "eval.every",
       .field = member<&Recipe::eval, &EvalConfig::every>,
       .doc = "Held-out loss each so many steps, and at the end. 0: only at "
              "the end.",
       .unit = "steps",
       .range = between(0, kMostCount)},
      {.path = "eval.batches",
       .field = member<&Recipe::eval, &EvalConfig::batches>,
       .doc = "Global batches of held-out text; no more than there are. 0: "
              "never evaluate.",
       .range = between(0, kMostCount)},
      {.path = "checkpoint.every",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::every>,
       .doc = "Save each so many steps, and the last one. 0: only the last.",
       .unit = "steps",
       .range = between(0, kMostCount)},
      {.path = "checkpoint.keep",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::keep>,
       .doc = "Older checkpoints are deleted. 0: none is.",
       .range = between(0, kMostCount)},
      {.path = "checkpoint.async",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::async>,
       .doc = "Write while training goes on; this version waits for the "
              "write all the same, and says so."},
      {.path = "checkpoint.resume",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::resume>,
       .doc = "auto: go on from the run's newest sound checkpoint, if there "
              "is one. never: start over, as with --fresh.",
       .choices = {"auto", "never"}},
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

using Budget = CommunicationBudgetConfig;

std::vector<Key> seeing_keys() {
  return {
      {.path = "log.tensorboard",
       .field = member<&Recipe::log, &LogConfig::tensorboard>,
       .doc = "Write TensorBoard's event files too, in the run's folder under "
              "`tensorboard/`."},
      {.path = "trace.first",
       .field = member<&Recipe::trace, &TraceConfig::first>,
       .doc = "The first step to trace. The first two of a process are "
              "unlike the others.",
       .range = between(1, kMostCount)},
      {.path = "trace.steps",
       .field = member<&Recipe::trace, &TraceConfig::steps>,
       .doc = "So many steps are traced. 0: none.",
       .unit = "steps",
       .range = between(0, 1000)},
      {.path = "communication_budget.mb_per_step",
       .field = member<&Recipe::communication_budget, &Budget::mb_per_step>,
       .doc = "The most that a rank's collectives of a step may hold, counted "
              "as its ledgers do, by their larger side. 0: any.",
       .unit = "1e6 bytes",
       .range = at_least(0)},
      {.path = "communication_budget.collectives_per_step",
       .field =
           member<&Recipe::communication_budget, &Budget::collectives_per_step>,
       .doc = "The most collectives of a step on one rank. 0: any number.",
       .range = between(0, kMostCount)},
      {.path = "communication_budget.implicit",
       .field = member<&Recipe::communication_budget, &Budget::implicit>,
       .doc = "The most collectives of a step that no style or line of the "
              "model asked for, but an op whose inputs did not lie right. -1: "
              "any number.",
       .range = or_else(-1, between(0, kMostCount))},
  };
}

} // namespace

std::span<const Key> schema() {
  static const std::vector<Key> table = [] {
    std::vector<Key> all;
    for (const auto& part :
         {run_keys(),
          model_keys(),
          parallel_keys(),
          data_keys(),
          train_keys(),
          optimizer_keys(),
          lifecycle_keys(),
          seeing_keys(),
          link_keys()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

std::span<const Section> sections() {
  static const std::vector<Section> table = {
      {"mesh", "The grid of ranks; dp x tp is the number of ranks."},
      {"model", "What is trained."},
      {"tp", "Tensor parallelism; without effect where mesh.tp is 1."},
      {"ddp", "Data parallelism; without effect where mesh.dp is 1."},
      {"comm", "How ranks talk to each other."},
      {"data", "What it is trained on. The last 1 % is held out."},
      {"train", "How long, and on how much at once."},
      {"optimizer", "How parameters are updated."},
      {"lr_schedule", "How the learning rate changes over the steps."},
      {"eval", "Loss on the held-out text."},
      {"checkpoint", "Saving and resuming."},
      {"log", "What a run writes beside `metrics.jsonl` and `report.html`."},
      {"trace",
       "A Chrome trace of some steps, `trace.json` in the run's folder: "
       "operators, modules, collectives."},
      {"links",
       "Prices of messages by mesh dim, instead of the cost model's. 0: the "
       "cost model's. The resolved recipe of a run with `cost_model: measure` "
       "has what was measured."},
      {"communication_budget",
       "What `weft explain` answers no to, with exit code 1. Training does not "
       "look at it."},
  };
  return table;
}

const Key* find_key(std::string_view path) {
  const auto keys = schema();
  const auto found = std::find_if(
      keys.begin(), keys.end(), [&](const Key& k) { return k.path == path; });
  return found == keys.end() ? nullptr : &*found;
}

bool is_section(std::string_view path) {
  const auto all = sections();
  return std::any_of(
      all.begin(), all.end(), [&](const Section& s) { return s.name == path; });
}

} // namespace weft::recipes
