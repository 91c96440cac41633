#include "inference/eval_samples.h"

#include <memory>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "data/batch_loader.h"
#include "data/token_file.h"
#include "mesh/error/error.h"
#include "models/registry.h"

namespace weft::inference {
namespace {

// Reads the windows `samples` of a file, with `length` tokens each, and their
// targets. Checks every token before the model embeds it, because the file may
// have been rewritten in place, or differ from its .json.
data::Batch read_windows(
    const data::TokenFile& file,
    int64_t length,
    int64_t vocab_size,
    std::span<const int64_t> samples) {
  const auto batch_size = static_cast<int64_t>(samples.size());
  auto tokens = at::empty({batch_size, length + 1}, at::kLong);
  auto* row = tokens.mutable_data_ptr<int64_t>();
  for (const int64_t sample : samples) {
    const std::span window(row, static_cast<size_t>(length) + 1);
    file.read(sample * length, window);
    file.check_tokens_below(window, sample * length, vocab_size);
    row += length + 1;
  }
  return {
      .input = tokens.narrow(1, 0, length).contiguous(),
      .target = tokens.narrow(1, 1, length).contiguous()};
}

data::BatchLoader open_single(config::Recipe recipe) {
  recipe.mesh.dp = 1;
  recipe.mesh.dp_shard = 1;
  recipe.train.global_batch_size = 1;
  recipe.train.micro_batch_size = 1;
  return data::BatchLoader::open(recipe, 0);
}

data::Batch read_heldout(
    data::BatchLoader& loader,
    std::span<const int64_t> samples) {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
  for (const int64_t sample : samples) {
    const auto batch = loader.heldout(sample, 0);
    inputs.push_back(batch.input);
    targets.push_back(batch.target);
  }
  return {.input = at::cat(inputs), .target = at::cat(targets)};
}

} // namespace

EvalSamples heldout_samples(const config::Recipe& recipe) {
  auto loader = std::make_shared<data::BatchLoader>(open_single(recipe));
  const int64_t count = loader->data().num_heldout_samples();
  const bool is_text =
      models::model_input(recipe) == models::ModelInput::kTokens;
  return {
      .count = count,
      .targets = is_text ? recipe.data.sequence_length : 1,
      .read = [loader](auto samples) { return read_heldout(*loader, samples); },
      .text = is_text ? fmt::format(
                            "{} held-out windows of {} tokens",
                            count,
                            recipe.data.sequence_length)
                      : fmt::format("{} held-out images", count),
      .fingerprint = fmt::format(
          "{} samples of {}", count, loader->data().fingerprint_text())};
}

EvalSamples token_windows(
    const config::Recipe& recipe,
    const std::string& path) {
  if (models::model_input(recipe) != models::ModelInput::kTokens) {
    config::refuse(
        recipe,
        "model.type",
        fmt::format(
            "a {} reads images, not tokens. Leave out --tokens",
            models::model_title(recipe)));
  }
  const auto file = data::TokenFile::open(
      path, data::TokenFormat::kRaw, data::TokenType::kUint16);
  const int64_t length = recipe.data.sequence_length;
  if (file.size() < length + 1) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "--tokens {}: got {} tokens, expected at least data.sequence_length + "
        "1 = {}. Give more tokens, or set a smaller data.sequence_length.",
        path,
        file.size(),
        length + 1));
  }
  const int64_t vocab_size = models::model_outputs(recipe);
  file.check_below(vocab_size);
  const int64_t count = (file.size() - 1) / length;
  return {
      .count = count,
      .targets = length,
      .read =
          [file, length, vocab_size](auto samples) {
            return read_windows(file, length, vocab_size, samples);
          },
      .text = fmt::format("{} windows of {} tokens of {}", count, length, path),
      .fingerprint =
          fmt::format("{} windows of {} bytes", count, file.file().size_bytes)};
}

} // namespace weft::inference
