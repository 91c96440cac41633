#include "config/schema_keys.h"

namespace weft::recipes::keys {

std::vector<Key> lifecycle_keys() {
  return {
      {.path = "ema.decay",
       .field = member<&Recipe::ema, &EmaConfig::decay>,
       .doc = "After each step the average becomes decay x itself + (1 - "
              "decay) x the weights; it begins at the weights. Such as 0.999. "
              "0: there is none.",
       .range = {.least = 0, .most = 1, .max_excluded = true}},
      {.path = "ema.eval",
       .field = member<&Recipe::ema, &EmaConfig::eval>,
       .doc = "Measure the held-out loss of the average too, as "
              "`ema_eval_loss`."},
      {.path = "eval.every",
       .field = member<&Recipe::eval, &EvalConfig::every>,
       .doc = "Held-out loss each so many steps, and at the end. 0: only at "
              "the end.",
       .unit = "steps",
       .range = between(0, kMaxCount)},
      {.path = "eval.batches",
       .field = member<&Recipe::eval, &EvalConfig::batches>,
       .doc = "Global batches of what is held out; no more than there are. 0: "
              "never evaluate.",
       .range = between(0, kMaxCount)},
  };
}

std::vector<Key> checkpoint_keys() {
  return {
      {.path = "checkpoint.every",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::every>,
       .doc = "Save each so many steps, and the last one. 0: only the last.",
       .unit = "steps",
       .range = between(0, kMaxCount)},
      {.path = "checkpoint.keep",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::keep>,
       .doc = "Older checkpoints are deleted. 0: none is.",
       .range = between(0, kMaxCount)},
      {.path = "checkpoint.async",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::async>,
       .doc = "Training waits while what is saved is copied, and goes on while "
              "it is written. The last save of a run is waited for. false: "
              "wait for each."},
      {.path = "checkpoint.max_mb_per_s",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::max_mb_per_s>,
       .doc = "The most that a rank writes in a second while training goes "
              "on. 0: as fast as it can.",
       .unit = "1e6 bytes",
       .range = or_else(0, between(0.001, 1e6))},
      {.path = "checkpoint.fsync",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::fsync>,
       .doc = "A checkpoint counts once it is on the disk. false: once the "
              "kernel has it, so that a crash of the machine may lose it."},
      {.path = "checkpoint.checksum",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::checksum>,
       .doc = "What accidents are found by. sha256: that beside xxh3; takes "
              "longer, and other programs know it.",
       .choices = {"xxh3", "sha256"}},
      {.path = "checkpoint.hmac_key_file",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::hmac_key_file>,
       .doc = "A file with a secret of 16 to 4096 bytes (a line feed at its "
              "end does not count). Checkpoints are signed with it, by "
              "HMAC-SHA256, and the run goes on only from those that are. "
              "Empty: none is."},
      {.path = "checkpoint.resume",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::resume>,
       .doc = "auto: go on from the run's newest sound checkpoint, if there "
              "is one. never: start over, as with --fresh.",
       .choices = {"auto", "never"}},
      {.path = "checkpoint.init_from",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::init_from>,
       .doc = "A new run's model begins with the weights of this checkpoint: a "
              "step folder, or a run's folder and so its newest. Adapters "
              "that it lacks begin as always. Empty: random weights."},
      {.path = "checkpoint.init_include",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::init_include>,
       .doc = "Globs of the model's tensors that init_from fills, such as "
              "`model.layers.**`: `*` stays between two dots. Others begin as "
              "always. Empty: all."},
      {.path = "checkpoint.init_exclude",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::init_exclude>,
       .doc = "Globs of those that it does not, such as `lm_head.weight`."},
      {.path = "checkpoint.init_rename",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::init_rename>,
       .doc =
           "Rules, in order, by which init_from's names, as `weft checkpoint "
           "inspect` shows them, become `model.` and the names here: "
           "`pattern -> replacement`, a regular expression (ECMAScript) "
           "and a text with $1 for its first group."},
      {.path = "checkpoint.init_strict",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::init_strict>,
       .doc = "Of the tensors that are to be filled. missing_ok: init_from may "
              "lack some, which begin as always. unexpected_ok: it may have "
              "more. both_ok: either.",
       .choices = {"exact", "missing_ok", "unexpected_ok", "both_ok"}},
      {.path = "checkpoint.export_to",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::export_to>,
       .doc = "At the end the model is written to this new folder in Hugging "
              "Face's form, as by `weft checkpoint export`. Empty: it is not.",
       .only = {.key = "model.type", .values = {"llama", "gpt2", "moe"}}},
  };
}

std::vector<Key> integrity_check_keys() {
  return {
      {.path = "integrity_check.every",
       .field = member<&Recipe::integrity_check, &IntegrityCheckConfig::every>,
       .doc = "Compare over all ranks each so many steps, and before every "
              "save. 0: never, and nothing is hashed.",
       .unit = "steps",
       .range = between(0, kMaxCount)},
      {.path = "integrity_check.hash_weights",
       .field = member<
           &Recipe::integrity_check,
           &IntegrityCheckConfig::hash_weights>,
       .doc = "Hash the state after each update, and again before the next: "
              "bits that changed meanwhile changed by themselves, which names "
              "the rank even where only two, or none, have copies. Costs two "
              "passes over the state a step; on the CPU only."},
  };
}

std::vector<Key> straggler_detection_keys() {
  return {
      {.path = "straggler_detection.every",
       .field = member<
           &Recipe::straggler_detection,
           &StragglerDetectionConfig::every>,
       .doc = "Compare how long ranks are busy each so many steps; one that is "
              "slow in three of four is named, with the phase. 0: never; on "
              "the CPU only.",
       .unit = "steps",
       .range = between(0, kMaxCount)},
  };
}

std::vector<Key> observability_keys() {
  using Budget = CommunicationBudgetConfig;
  return {
      {.path = "log.tensorboard",
       .field = member<&Recipe::log, &LogConfig::tensorboard>,
       .doc = "Write TensorBoard's event files too, in the run's folder under "
              "`tensorboard/`."},
      {.path = "trace.first_step",
       .field = member<&Recipe::trace, &TraceConfig::first_step>,
       .doc = "The first step to trace. The first two of a process are "
              "unlike the others.",
       .range = between(1, kMaxCount)},
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
       .range = between(0, kMaxCount)},
      {.path = "communication_budget.implicit_collectives",
       .field =
           member<&Recipe::communication_budget, &Budget::implicit_collectives>,
       .doc = "The most collectives of a step that no style or line of the "
              "model asked for, but an op whose inputs did not lie right. -1: "
              "any number.",
       .range = or_else(-1, between(0, kMaxCount))},
  };
}

} // namespace weft::recipes::keys
