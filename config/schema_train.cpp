#include "config/schema_keys.h"

namespace weft::recipes::keys {

std::vector<Key> data_keys() {
  return {
      {.path = "data.type",
       .field = member<&Recipe::data, &DataConfig::type>,
       .doc = "What the files hold. text: anything, for language models. "
              "tokens: text that `weft tokenize` or another program has turned "
              "into tokens (docs/tokens.md). digits: scikit-learn's "
              "digits.csv.gz (`make digits`), for models of images.",
       .choices = {"text", "tokens", "digits"}},
      {.path = "data.paths",
       .field = member<&Recipe::data, &DataConfig::paths>,
       .doc = "Files, folders (with all below them, hidden ones left out) and "
              "globs (`**` too), relative to the current directory. Of tokens, "
              "files that end in .idx and .json are left out.",
       .required = true},
      {.path = "data.tokenizer",
       .field = member<&Recipe::data, &DataConfig::tokenizer>,
       .doc = "How text becomes tokens, and tokens text. byte: every byte is "
              "one. Else a SentencePiece *.model, a tokenizer.json, or a "
              "folder with one of them; training takes text as bytes only, and "
              "with tokens checks that they are this tokenizer's.",
       .only = {.key = "data.type", .values = {"text", "tokens"}}},
      {.path = "data.format",
       .field = member<&Recipe::data, &DataConfig::format>,
       .doc = "How tokens lie in the files. raw: nothing else. llm.c: behind a "
              "header of 1024 bytes. megatron: FILE.bin with FILE.idx. auto: "
              "megatron with an .idx, llm.c with its magic number, else raw.",
       .choices = {"auto", "raw", "llm.c", "megatron"},
       .only = {.key = "data.type", .values = {"tokens"}}},
      {.path = "data.dtype",
       .field = member<&Recipe::data, &DataConfig::dtype>,
       .doc = "Of tokens in raw files, little-endian. auto: what `weft "
              "tokenize` wrote beside the file, else uint16.",
       .choices = {"auto", "uint16", "uint32"},
       .only = {.key = "data.type", .values = {"tokens"}}},
      {.path = "data.sequence_length",
       .field = member<&Recipe::data, &DataConfig::sequence_length>,
       .doc = "Length of a sample.",
       .unit = "tokens",
       .range = between(1, kMaxSize),
       .only = {.key = "data.type", .values = {"text", "tokens"}}},
  };
}

std::vector<Key> train_keys() {
  return {
      {.path = "train.steps",
       .field = member<&Recipe::train, &TrainConfig::steps>,
       .doc = "Optimizer steps.",
       .range = between(1, kMaxCount)},
      {.path = "train.global_batch_size",
       .field = member<&Recipe::train, &TrainConfig::global_batch_size>,
       .doc = "Samples a step takes, over all ranks; a multiple of dp x "
              "dp_shard x micro_batch_size, and that many times "
              "accumulated.",
       .unit = "samples",
       .range = between(1, kMaxSize)},
      {.path = "train.micro_batch_size",
       .field = member<&Recipe::train, &TrainConfig::micro_batch_size>,
       .doc = "Samples a replica, or a rank of dp_shard, takes at once. 0: "
              "global_batch_size / (dp x dp_shard).",
       .unit = "samples",
       .range = or_else(0, between(1, kMaxSize))},
      {.path = "train.max_grad_norm",
       .field = member<&Recipe::train, &TrainConfig::max_grad_norm>,
       .doc = "Gradients are scaled down to this norm over all parameters. 0: "
              "never.",
       .range = at_least(0)},
      {.path = "train.dtype",
       .field = member<&Recipe::train, &TrainConfig::dtype>,
       .doc = "Of computation. bfloat16: parameters that the optimizer "
              "updates, their gradients and its state stay float32.",
       .choices = {"float32", "bfloat16"}},
      {.path = "train.z_loss",
       .field = member<&Recipe::train, &TrainConfig::z_loss>,
       .doc = "Weight of the loss that keeps logits small, the mean square of "
              "their logsumexp. 0: none.",
       .range = between(0, 1000)},
      {.path = "train.label_smoothing",
       .field = member<&Recipe::train, &TrainConfig::label_smoothing>,
       .doc = "The part of a target that is spread over all classes; not in "
              "the held-out loss.",
       .range = between(0, 1)},
      {.path = "train.activation_checkpoint",
       .field = member<&Recipe::train, &TrainConfig::activation_checkpoint>,
       .doc = "Forget what forward computed and compute it again in backward. "
              "full: every block. selective: activation_checkpoint_modules.",
       .choices = {"none", "full", "selective"}},
      {.path = "train.activation_checkpoint_modules",
       .field =
           member<&Recipe::train, &TrainConfig::activation_checkpoint_modules>,
       .doc = "Globs of the names of modules that selective computes again, "
              "such as `model.layers.*.mlp`."},
      {.path = "train.on_non_finite",
       .field = member<&Recipe::train, &TrainConfig::on_non_finite>,
       .doc = "What becomes of a step whose loss, or norm of the gradients, is "
              "not a finite number. stop: the run ends, with 3. skip: nothing "
              "is updated, and data and schedule go on. All ranks do the same; "
              "the step, the rank and the samples or the parameter are named.",
       .choices = {"stop", "skip"}},
      {.path = "train.max_consecutive_non_finite",
       .field =
           member<&Recipe::train, &TrainConfig::max_consecutive_non_finite>,
       .doc = "Of train.on_non_finite=skip: at most so many steps in a row are "
              "skipped; one more ends the run, with 3.",
       .unit = "steps",
       .range = between(1, kMaxCount)},
      {.path = "train.log_every",
       .field = member<&Recipe::train, &TrainConfig::log_every>,
       .doc = "A line of progress each so many steps, where there is no "
              "terminal.",
       .unit = "steps",
       .range = between(1, kMaxCount)},
  };
}

std::vector<Key> lora_keys() {
  return {
      {.path = "lora.rank",
       .field = member<&Recipe::lora, &LoraConfig::rank>,
       .doc = "Of the updates. 0: no adapters.",
       .range = between(0, kMaxSize)},
      {.path = "lora.alpha",
       .field = member<&Recipe::lora, &LoraConfig::alpha>,
       .doc = "Updates are scaled by alpha / rank.",
       .range = above(0, 1e6)},
      {.path = "lora.dropout",
       .field = member<&Recipe::lora, &LoraConfig::dropout>,
       .doc = "Probability that training drops an input of an adapter.",
       .range = between(0, 0.999)},
      {.path = "lora.target_modules",
       .field = member<&Recipe::lora, &LoraConfig::target_modules>,
       .doc = "Globs of the names of Linears, such as "
              "`model.layers.*.self_attn.q_proj`."},
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
       .range = {.least = 0, .most = 1, .max_excluded = true}},
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
       .range = between(0, kMaxCount)},
      {.path = "lr_schedule.min_ratio",
       .field = member<&Recipe::lr_schedule, &LrScheduleConfig::min_ratio>,
       .doc = "The last step's rate as a part of the peak; constant ignores "
              "it.",
       .range = between(0, 1)},
  };
}

} // namespace weft::recipes::keys
