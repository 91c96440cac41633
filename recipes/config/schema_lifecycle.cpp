#include "recipes/config/schema_keys.h"

namespace weft::recipes::keys {

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
       .doc = "Global batches of what is held out; no more than there are. 0: "
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
      {.path = "checkpoint.init_from",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::init_from>,
       .doc = "A new run's model begins with the weights of this checkpoint: a "
              "step folder, or a run's folder and so its newest. Adapters "
              "that it lacks begin as always. Empty: random weights."},
      {.path = "checkpoint.export_to",
       .field = member<&Recipe::checkpoint, &CheckpointConfig::export_to>,
       .doc = "At the end the model is written to this new folder in Hugging "
              "Face's form, as by `weft checkpoint export`. Empty: it is not.",
       .only = {.key = "model.type", .values = {"llama", "gpt2", "moe"}}},
  };
}

std::vector<Key> seeing_keys() {
  using Budget = CommunicationBudgetConfig;
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

} // namespace weft::recipes::keys
