#include "hf/export_model.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/files/folder.h"
#include "checkpoint/format/dtype.h"
#include "hf/checkpoint_weights.h"
#include "hf/config_json.h"
#include "hf/json_file.h"
#include "hf/new_folder.h"
#include "hf/weight_writer.h"
#include "mesh/error/error.h"

namespace weft::hf {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockElements = 16 << 20;
constexpr int64_t kMaxOtherBytes = 256 << 20;

constexpr std::array kOtherFiles{
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json"};

// For each exported tensor, the pieces of the model's tensors that it is made
// of.
using Sources = std::
    map<std::string, std::vector<std::pair<const std::string*, const Piece*>>>;

Sources sources_of(const TensorMap& map) {
  Sources sources;
  for (const auto& [name, tensor] : map.model) {
    for (const auto& piece : tensor.pieces) {
      sources[piece.hub_name].emplace_back(&name, &piece);
    }
  }
  return sources;
}

class Export {
 public:
  Export(
      CheckpointWeights& weights,
      const checkpoint::Folder& folder,
      const ExportOptions& options)
      : weights_(weights),
        folder_(folder),
        options_(options),
        sources_(sources_of(weights.map())) {}

  Exported run() {
    write_weights();
    write_config_file();
    copy_others();
    done_.merged = weights_.num_adapters();
    return done_;
  }

 private:
  void write_weights() {
    std::vector<Planned> tensors;
    int64_t total = 0;
    for (const auto& [name, shape] : weights_.map().hub) {
      const auto& first = *sources_.at(name).front().first;
      tensors.push_back(
          {name, options_.dtype.value_or(weights_.dtype(first)), shape});
      total += tensors.back().bytes();
    }
    dtype_ = tensors.front().dtype;
    const auto shards =
        plan_shards(std::move(tensors), options_.max_shard_bytes);
    for (size_t i = 0; i < shards.size(); ++i) {
      WeightWriter writer(folder_, shard_name(i, shards.size()), shards[i]);
      for (const auto& tensor : shards[i]) {
        write_tensor(tensor, writer);
        done_.bytes += tensor.bytes();
        ++done_.tensors;
        if (options_.progress) {
          options_.progress(done_.bytes, total, tensor.name);
        }
      }
      writer.finish();
      ++done_.files;
    }
    write_shard_index(folder_, shards);
  }

  void write_tensor(const Planned& tensor, WeightWriter& writer) {
    const auto rows = tensor.shape.front();
    const auto columns = tensor.shape.size() == 1 ? 1 : tensor.shape[1];
    const auto max_rows = std::max<int64_t>(kBlockElements / columns, 1);
    for (int64_t row = 0; row < rows; row += max_rows) {
      Box block{Sizes(tensor.shape.size(), 0), tensor.shape};
      block.offset.front() = row;
      block.shape.front() = std::min(max_rows, rows - row);
      auto values =
          at::empty(block.shape, at::TensorOptions().dtype(tensor.dtype));
      for (const auto& [name, piece] : sources_.at(tensor.name)) {
        fill(*name, *piece, tensor.name, block, values);
      }
      writer.append(values);
    }
  }

  void fill(
      const std::string& name,
      const Piece& piece,
      const std::string& hub_name,
      const Box& block,
      const at::Tensor& values) {
    const auto part = overlap(hub_box(piece), block);
    if (!part) {
      return;
    }
    const auto ours = our_box(piece, *part);
    auto target = values;
    for (size_t d = 0; d < part->shape.size(); ++d) {
      target = target.narrow(
          static_cast<int64_t>(d),
          part->offset[d] - block.offset[d],
          part->shape[d]);
    }
    target.copy_(rounded_for_export(
        hub_view(weights_.read(name, ours), ours, ours, piece),
        target.scalar_type(),
        {.name = hub_name, .offset = part->offset}));
  }

  void write_config_file() {
    auto base = weights_.config();
    const auto from = open_from();
    if (base.empty() && from && from->has(kConfigName)) {
      base = read_small_file(*from, kConfigName, kMaxConfigBytes);
    }
    if (base.empty() && !weights_.from().empty()) {
      done_.notes.push_back(config_note());
    }
    write_small_file(
        folder_,
        kConfigName,
        write_config(
            weights_.model(),
            weights_.sequence_length(),
            checkpoint::plain_name(dtype_),
            base));
    done_.others.emplace_back(kConfigName);
  }

  // Describes the keys of config.json that could not be copied, because the
  // original folder is gone.
  std::string config_note() const {
    const auto positions =
        weights_.model().type == "gpt2"
            ? std::string()
            : fmt::format(
                  ", and max_position_embeddings is data.sequence_length, {}",
                  weights_.sequence_length());
    return fmt::format(
        "{}/{} is gone: in the one that was written bos_token_id, eos_token_id "
        "and pad_token_id are null{}",
        weights_.from(),
        kConfigName,
        positions);
  }

  void copy_others() {
    const auto from = open_from();
    if (!from) {
      if (!weights_.from().empty()) {
        done_.notes.push_back(fmt::format(
            "{}, where the model came from, is gone: no tokenizer was copied",
            weights_.from()));
      }
      return;
    }
    for (const char* name : kOtherFiles) {
      if (!from->has(name)) {
        continue;
      }
      try {
        write_small_file(
            folder_, name, read_small_file(*from, name, kMaxOtherBytes));
        done_.others.emplace_back(name);
      } catch (const mesh::UsageError& error) {
        done_.notes.push_back(fmt::format(
            "{} was not copied: {}", name, error.what_without_backtrace()));
      }
    }
  }

  std::optional<checkpoint::Folder> open_from() const {
    if (weights_.from().empty()) {
      return std::nullopt;
    }
    try {
      return checkpoint::Folder::open(weights_.from());
    } catch (const mesh::UsageError&) {
      return std::nullopt;
    }
  }

  CheckpointWeights& weights_;
  const checkpoint::Folder& folder_;
  const ExportOptions& options_;
  Sources sources_;
  at::ScalarType dtype_ = at::kFloat;
  Exported done_;
};

} // namespace

std::string describe(const Exported& exported) {
  const auto bytes = static_cast<double>(exported.bytes);
  auto text = fmt::format(
      "{} tensors, {} in {} {}",
      exported.tensors,
      bytes < 1e6 ? fmt::format("{:.1f} kB", bytes * 1e-3)
                  : fmt::format("{:.1f} MB", bytes * 1e-6),
      exported.files,
      exported.files == 1 ? "file" : "files");
  if (exported.merged > 0) {
    text += fmt::format(", {} adapters merged", exported.merged);
  }
  return text + fmt::format(", beside {}", fmt::join(exported.others, ", "));
}

Exported export_model(
    const fs::path& step_folder,
    const fs::path& folder,
    const ExportOptions& options) {
  const at::NoGradGuard no_grad;
  // Ignores a trailing slash: the filename of "out/" is empty.
  const auto path = folder.has_filename() ? folder : folder.parent_path();
  check_is_free(path);
  if (options.max_shard_bytes < 1) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "got a file size of {} bytes, expected at least 1",
        options.max_shard_bytes));
  }
  CheckpointWeights weights(step_folder, options.averaged);
  NewFolder made(path);
  auto exported = Export(weights, made.folder(), options).run();
  made.commit();
  return exported;
}

} // namespace weft::hf
