#include "config/schema_keys.h"

namespace weft::config::keys {

std::vector<Key> lifecycle_keys() {
  return {
      {.path = "ema.decay",
       .field = member<&Recipe::ema, &EmaConfig::decay>,
       .doc =
           "The decay of the exponential moving average (EMA). After each step "
           "ema = decay * ema + (1 - decay) * weights; it starts at the "
           "initial weights. A typical value is 0.999. 0 disables the EMA.",
       .range = {.least = 0, .most = 1, .max_excluded = true}},
      {.path = "ema.eval",
       .field = member<&Recipe::ema, &EmaConfig::eval>,
       .doc = "Also computes the validation loss of the EMA weights and logs "
              "it as `ema_eval_loss`.",
       .effect = {.key = "ema.decay", .values = {"0.0"}, .is_not = true}},
      {.path = "eval.every",
       .field = member<&Recipe::eval, &EvalConfig::every>,
       .doc = "The number of steps between evaluations of the validation loss. "
              "The last step is always evaluated. 0 means only the last step.",
       .unit = "steps",
       .range = between(0, kMaxCount)},
      {.path = "eval.batches",
       .field = member<&Recipe::eval, &EvalConfig::batches>,
       .doc = "The number of global batches of validation data per evaluation, "
              "at most the number that exists. 0 disables evaluation.",
       .range = between(0, kMaxCount)},
  };
}

std::vector<Key> checkpoint_keys() {
  return {
      {.path = "checkpoint.every",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::every>,
       .doc = "The number of steps between checkpoints. The last step is "
              "always saved. 0 means only the last step.",
       .unit = "steps",
       .range = between(0, kMaxCount)},
      {.path = "checkpoint.keep",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::keep>,
       .doc = "The number of newest checkpoints to keep. Older checkpoints are "
              "deleted. 0 keeps all.",
       .range = between(0, kMaxCount)},
      {.path = "checkpoint.async",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::async>,
       .doc = "Saves in the background: training pauses only while the state "
              "is copied, not while it is written. The run waits for its last "
              "save. false waits for every save."},
      {.path = "checkpoint.max_mb_per_s",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::max_mb_per_s>,
       .doc = "The limit of background writes, per rank and second. 0 means no "
              "limit.",
       .unit = "1e6 bytes",
       .range = or_else(0, between(0.001, 1e6)),
       .effect = {.key = "checkpoint.async", .values = {"true"}}},
      {.path = "checkpoint.fsync",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::fsync>,
       .doc = "Completes a checkpoint only when it is on disk. With false it "
              "is complete when the kernel has it, and a crash of the machine "
              "can lose it."},
      {.path = "checkpoint.checksum",
       .field = choice<&Recipe::checkpoint, &CheckpointConfig::checksum>,
       .doc = "The checksum of each block. sha256 is stored in addition to "
              "xxh3; it is slower, but other tools can verify it."},
      {.path = "checkpoint.hmac_key_file",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::hmac_key_file>,
       .doc = "A file with a secret of 16 to 4096 bytes; a final newline is "
              "ignored. Checkpoints are signed with HMAC-SHA256, and the run "
              "resumes only from checkpoints with a valid signature. Empty "
              "disables signing."},
      {.path = "checkpoint.resume",
       .field = choice<&Recipe::checkpoint, &CheckpointConfig::resume>,
       .doc = "auto resumes from the run's newest valid checkpoint if there is "
              "one. never starts over, like --fresh."},
      {.path = "checkpoint.init_from",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::init_from>,
       .doc = "The checkpoint from which a new run takes its initial weights: "
              "a step folder, or a run's folder for its newest checkpoint. "
              "LoRA adapters that the checkpoint does not have are initialized "
              "as in a new run. Empty means random weights."},
      {.path = "checkpoint.init_include",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::init_include>,
       .doc = "Globs of the model tensors that init_from fills, such as "
              "`model.layers.**`. `*` does not match a dot. All other tensors "
              "are initialized as in a new run. Empty means all tensors.",
       .effect =
           {.key = "checkpoint.init_from", .values = {"\"\""}, .is_not = true}},
      {.path = "checkpoint.init_exclude",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::init_exclude>,
       .doc = "Globs of the model tensors that init_from does not fill, such "
              "as `lm_head.weight`.",
       .effect =
           {.key = "checkpoint.init_from", .values = {"\"\""}, .is_not = true}},
      {.path = "checkpoint.init_rename",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::init_rename>,
       .doc = "Rules that rename the tensors of init_from (as `weft checkpoint "
              "inspect` lists them) to this model's names, which begin with "
              "`model.`. They are applied in order. A rule is `pattern -> "
              "replacement`: an ECMAScript regular expression, and a string in "
              "which $1 is the first group.",
       .effect =
           {.key = "checkpoint.init_from", .values = {"\"\""}, .is_not = true}},
      {.path = "checkpoint.init_strict",
       .field = choice<&Recipe::checkpoint, &CheckpointConfig::init_strict>,
       .doc = "Whether the tensors to fill must match those of init_from. "
              "missing_ok allows tensors that init_from does not have; they "
              "are initialized as in a new run. unexpected_ok allows "
              "additional tensors in init_from. both_ok allows both.",
       .effect =
           {.key = "checkpoint.init_from", .values = {"\"\""}, .is_not = true}},
      {.path = "checkpoint.export_to",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::export_to>,
       .doc = "A new folder to which the model is written in Hugging Face "
              "format after the last step, as by `weft checkpoint export`. "
              "Empty disables the export.",
       .only = {.key = "model.type", .values = {"llama", "gpt2", "moe"}}},
  };
}

std::vector<Key> integrity_check_keys() {
  return {
      {.path = "integrity_check.every",
       .field = member<&Recipe::integrity_check, &IntegrityCheckConfig::every>,
       .doc = "The number of steps between comparisons of all replicas. Every "
              "save is preceded by one. 0 disables the check, and nothing is "
              "hashed.",
       .unit = "steps",
       .range = between(0, kMaxCount)},
      {.path = "integrity_check.hash_weights",
       .field = member<
           &Recipe::integrity_check,
           &IntegrityCheckConfig::hash_weights>,
       .doc = "Hashes the state after each update and again before the next "
              "one. A difference means memory corruption, and the error names "
              "the rank even without a third replica. This costs two passes "
              "over the state per step. CPU only."},
  };
}

std::vector<Key> straggler_detection_keys() {
  return {
      {.path = "straggler_detection.every",
       .field = member<
           &Recipe::straggler_detection,
           &StragglerDetectionConfig::every>,
       .doc =
           "The number of steps between comparisons of the ranks' busy times. "
           "A rank that is slow in 3 of 4 comparisons is reported, together "
           "with the slow phase. 0 disables the detection. CPU only.",
       .unit = "steps",
       .range = between(0, kMaxCount)},
  };
}

std::vector<Key> observability_keys() {
  using Budget = CommunicationBudgetConfig;
  return {
      {.path = "log.tensorboard",
       .field = member<&Recipe::log, &LogConfig::tensorboard>,
       .doc = "Also writes TensorBoard event files to `tensorboard/` in the "
              "run's folder."},
      {.path = "trace.first_step",
       .field = member<&Recipe::trace, &TraceConfig::first_step>,
       .doc = "The first step of the trace. The first two steps of a process "
              "are not representative.",
       .range = between(1, kMaxCount),
       .effect = {.key = "trace.steps", .values = {"0"}, .is_not = true}},
      {.path = "trace.steps",
       .field = member<&Recipe::trace, &TraceConfig::steps>,
       .doc = "The number of steps in the trace. 0 disables tracing.",
       .unit = "steps",
       .range = between(0, 1000)},
      {.path = "communication_budget.mb_per_step",
       .field = member<&Recipe::communication_budget, &Budget::mb_per_step>,
       .doc = "The limit for the data that the collectives of one step move on "
              "one rank, counted by the larger of input and output as in the "
              "flight recorder. 0 means no limit.",
       .unit = "1e6 bytes",
       .range = at_least(0)},
      {.path = "communication_budget.collectives_per_step",
       .field =
           member<&Recipe::communication_budget, &Budget::collectives_per_step>,
       .doc = "The limit for the number of collectives of one step on one "
              "rank. 0 means no limit.",
       .range = between(0, kMaxCount)},
      {.path = "communication_budget.implicit_collectives",
       .field =
           member<&Recipe::communication_budget, &Budget::implicit_collectives>,
       .doc = "The limit for the number of collectives per step that an op "
              "issued because its inputs had other placements, not because the "
              "model or a parallel style asked for them. -1 means no limit.",
       .range = or_else(-1, between(0, kMaxCount))},
  };
}

} // namespace weft::config::keys
