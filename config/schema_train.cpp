#include "config/schema_keys.h"

namespace weft::config::keys {

std::vector<Key> data_keys() {
  return {
      {.path = "data.type",
       .field = choice<&Recipe::data, &DataConfig::type>,
       .doc = "The content of the files. text is any text, for language "
              "models. tokens is the output of `weft tokenize` or of another "
              "tokenizer (docs/tokens.md). digits is scikit-learn's "
              "digits.csv.gz (`make digits`), for image models."},
      {.path = "data.paths",
       .field = member<&Recipe::data, &DataConfig::paths>,
       .doc = "Files, folders (recursively, without hidden files) and globs "
              "(including `**`), relative to the current directory. For "
              "tokens, files that end in .idx or .json are skipped.",
       .required = true},
      {.path = "data.tokenizer",
       .field = member<&Recipe::data, &DataConfig::tokenizer>,
       .doc = "The tokenizer: byte (each byte is a token), a SentencePiece "
              "*.model, a tokenizer.json, or a folder with one of the two. For "
              "data.type text only byte is supported. For tokens the run "
              "checks that this tokenizer made them.",
       .only = {.key = "data.type", .values = {"text", "tokens"}}},
      {.path = "data.format",
       .field = choice<&Recipe::data, &DataConfig::format>,
       .doc = "The file format of tokens. raw has no header. llm.c has a "
              "header of 1024 bytes. megatron is FILE.bin with FILE.idx. auto "
              "selects megatron if there is an .idx, llm.c if the file has its "
              "magic number, and raw otherwise.",
       .only = {.key = "data.type", .values = {"tokens"}}},
      {.path = "data.dtype",
       .field = choice<&Recipe::data, &DataConfig::dtype>,
       .doc =
           "The dtype of tokens in raw files, little-endian. auto uses what "
           "`weft tokenize` recorded next to the file, and uint16 otherwise.",
       .only = {.key = "data.type", .values = {"tokens"}}},
      {.path = "data.sequence_length",
       .field = member<&Recipe::data, &DataConfig::sequence_length>,
       .doc = "The length of a sample.",
       .unit = "tokens",
       .range = between(1, kMaxSize),
       .only = {.key = "data.type", .values = {"text", "tokens"}}},
  };
}

std::vector<Key> train_keys() {
  return {
      {.path = "train.steps",
       .field = member<&Recipe::train, &TrainConfig::steps>,
       .doc = "The number of optimizer steps.",
       .range = between(1, kMaxCount)},
      {.path = "train.global_batch_size",
       .field = member<&Recipe::train, &TrainConfig::global_batch_size>,
       .doc = "The number of samples per step over all ranks. It must be a "
              "multiple of dp * dp_shard * micro_batch_size; the quotient is "
              "the number of accumulated micro-batches.",
       .unit = "samples",
       .range = between(1, kMaxSize)},
      {.path = "train.micro_batch_size",
       .field = member<&Recipe::train, &TrainConfig::micro_batch_size>,
       .doc = "The number of samples that a replica, or a rank of dp_shard, "
              "computes at once. 0 means global_batch_size / (dp * dp_shard).",
       .unit = "samples",
       .range = or_else(0, between(1, kMaxSize))},
      {.path = "train.max_grad_norm",
       .field = member<&Recipe::train, &TrainConfig::max_grad_norm>,
       .doc = "The norm to which gradients are clipped, over all parameters. 0 "
              "disables clipping.",
       .range = at_least(0)},
      {.path = "train.dtype",
       .field = choice<&Recipe::train, &TrainConfig::dtype>,
       .doc = "The dtype of computation. With bfloat16 the parameters, "
              "gradients and optimizer state stay float32."},
      {.path = "train.z_loss",
       .field = member<&Recipe::train, &TrainConfig::z_loss>,
       .doc = "The weight of the z-loss: the mean square of the logsumexp of "
              "the logits. 0 disables it.",
       .range = between(0, 1000)},
      {.path = "train.label_smoothing",
       .field = member<&Recipe::train, &TrainConfig::label_smoothing>,
       .doc = "The fraction of a target that is spread over all classes. The "
              "validation loss does not use it.",
       .range = between(0, 1)},
      {.path = "train.activation_checkpoint",
       .field = choice<&Recipe::train, &TrainConfig::activation_checkpoint>,
       .doc = "Recomputes activations in backward instead of storing them. "
              "full recomputes every block. selective recomputes "
              "activation_checkpoint_modules."},
      {.path = "train.activation_checkpoint_modules",
       .field =
           member<&Recipe::train, &TrainConfig::activation_checkpoint_modules>,
       .doc = "Globs of the module names that selective recomputes, such as "
              "`model.layers.*.mlp`."},
      {.path = "train.on_non_finite",
       .field = choice<&Recipe::train, &TrainConfig::on_non_finite>,
       .doc = "The reaction of all ranks to a loss or gradient norm that is "
              "NaN or infinite. stop ends the run with exit code 3. skip skips "
              "the update; the data and the schedule advance. The message "
              "names the step, the rank, and the samples or the parameter."},
      {.path = "train.max_consecutive_non_finite",
       .field =
           member<&Recipe::train, &TrainConfig::max_consecutive_non_finite>,
       .doc = "For train.on_non_finite=skip: the number of consecutive steps "
              "that may be skipped. One more ends the run with exit code 3.",
       .unit = "steps",
       .range = between(1, kMaxCount),
       .effect = {.key = "train.on_non_finite", .values = {"skip"}}},
      {.path = "train.log_every",
       .field = member<&Recipe::train, &TrainConfig::log_every>,
       .doc = "The number of steps between progress lines if the output is not "
              "a terminal.",
       .unit = "steps",
       .range = between(1, kMaxCount)},
  };
}

std::vector<Key> lora_keys() {
  return {
      {.path = "lora.rank",
       .field = member<&Recipe::lora, &LoraConfig::rank>,
       .doc = "The rank of the updates. 0 disables LoRA.",
       .range = between(0, kMaxSize)},
      {.path = "lora.alpha",
       .field = member<&Recipe::lora, &LoraConfig::alpha>,
       .doc = "The scale of the updates is alpha / rank.",
       .range = above(0, 1e6),
       .effect = {.key = "lora.rank", .values = {"0"}, .is_not = true}},
      {.path = "lora.dropout",
       .field = member<&Recipe::lora, &LoraConfig::dropout>,
       .doc = "The probability of dropping an input of an adapter in training.",
       .range = between(0, 0.999),
       .effect = {.key = "lora.rank", .values = {"0"}, .is_not = true}},
      {.path = "lora.target_modules",
       .field = member<&Recipe::lora, &LoraConfig::target_modules>,
       .doc = "Globs of the names of the Linear layers, such as "
              "`model.layers.*.self_attn.q_proj`."},
  };
}

std::vector<Key> optimizer_keys() {
  return {
      {.path = "optimizer.type",
       .field = choice<&Recipe::optimizer, &OptimizerConfig::type>,
       .doc = "The optimizer."},
      {.path = "optimizer.lr",
       .field = member<&Recipe::optimizer, &OptimizerConfig::lr>,
       .doc = "The peak learning rate of the schedule.",
       .range = between(0, 1000)},
      {.path = "optimizer.betas",
       .field = member<&Recipe::optimizer, &OptimizerConfig::betas>,
       .doc = "The decay rates of the moving averages of the gradient and of "
              "its square.",
       .range = {.least = 0, .most = 1, .max_excluded = true}},
      {.path = "optimizer.eps",
       .field = member<&Recipe::optimizer, &OptimizerConfig::eps>,
       .doc =
           "The epsilon added to the denominator. Without it, a weight whose "
           "gradient is 0 would become 0/0 in the first update.",
       .range = {.least = 0, .most = 1, .min_excluded = true}},
      {.path = "optimizer.weight_decay",
       .field = member<&Recipe::optimizer, &OptimizerConfig::weight_decay>,
       .doc = "The decoupled weight decay.",
       .range = between(0, 1000)},
      {.path = "lr_schedule.type",
       .field = choice<&Recipe::lr_schedule, &LrScheduleConfig::type>,
       .doc = "The decay from the peak to min_ratio after the warmup."},
      {.path = "lr_schedule.warmup_steps",
       .field = member<&Recipe::lr_schedule, &LrScheduleConfig::warmup_steps>,
       .doc = "The number of steps over which the learning rate rises linearly "
              "to the peak.",
       .unit = "steps",
       .range = between(0, kMaxCount)},
      {.path = "lr_schedule.min_ratio",
       .field = member<&Recipe::lr_schedule, &LrScheduleConfig::min_ratio>,
       .doc = "The learning rate of the last step divided by the peak. "
              "constant ignores it.",
       .range = between(0, 1),
       .effect =
           {.key = "lr_schedule.type", .values = {"constant"}, .is_not = true}},
  };
}

} // namespace weft::config::keys
