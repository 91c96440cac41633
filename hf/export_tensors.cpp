#include "hf/export_tensors.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "base/dotted_pattern.h"
#include "checkpoint/files/text.h"
#include "checkpoint/store/store.h"
#include "checkpoint/tensors/tensor_file.h"
#include "checkpoint/tensors/tensor_stream.h"
#include "hf/new_folder.h"
#include "hf/weight_writer.h"
#include "mesh/error/error.h"

namespace weft::hf {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTensorRunBytes = 4 << 20;
constexpr int64_t kTensorCachedPieces = 32;
constexpr const char* kTensorSuffix = ".safetensors";

[[noreturn]] void refuse_export(const std::string& what) {
  mesh::throw_error<mesh::UsageError>("export: " + what);
}

bool matches_any(
    const std::vector<std::string>& patterns,
    const std::string& key) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return base::matches_dotted(pattern, key);
  });
}

// Returns the key of each selected tensor by its name in the files.
std::map<std::string, std::string> selected(
    const checkpoint::Manifest& manifest,
    const ExportTensorsOptions& options) {
  for (const auto* patterns : {&options.include, &options.exclude}) {
    for (const auto& pattern : *patterns) {
      const bool is_used =
          std::ranges::any_of(manifest.tensors, [&](const auto& tensor) {
            return base::matches_dotted(pattern, tensor.first);
          });
      if (!is_used) {
        refuse_export(fmt::format(
            "{} matches no tensor. * does not match a dot, ** does",
            checkpoint::in_quotes(pattern)));
      }
    }
  }
  const checkpoint::Renaming renaming(options.rename);
  std::map<std::string, std::string> keys;
  for (const auto& [key, record] : manifest.tensors) {
    if ((!options.include.empty() && !matches_any(options.include, key)) ||
        matches_any(options.exclude, key)) {
      continue;
    }
    const auto name = renaming(key);
    const auto [other, is_new] = keys.emplace(name, key);
    if (!is_new) {
      refuse_export(fmt::format(
          "tensors {} and {} would both be exported as {}. Change the rename "
          "rules",
          checkpoint::in_quotes(other->second),
          checkpoint::in_quotes(key),
          checkpoint::in_quotes(name)));
    }
    std::string why;
    if (!checkpoint::is_tensor_name(name, why)) {
      refuse_export(why);
    }
  }
  if (keys.empty()) {
    refuse_export("no tensor is left to write");
  }
  return keys;
}

class TensorExport {
 public:
  TensorExport(const fs::path& step_folder, const ExportTensorsOptions& options)
      : options_(options),
        pin_(step_folder),
        manifest_(checkpoint::read_manifest(pin_.folder(), options.hmac_key)),
        reader_(pin_.folder(), manifest_, kTensorCachedPieces),
        keys_(selected(manifest_, options)) {}

  ExportedTensors write_to(const checkpoint::Folder& folder, bool is_one_file) {
    const auto shards = plan_shards(
        planned(),
        is_one_file ? std::numeric_limits<int64_t>::max()
                    : options_.max_shard_bytes);
    for (size_t i = 0; i < shards.size(); ++i) {
      WeightWriter writer(folder, shard_name(i, shards.size()), shards[i]);
      for (const auto& tensor : shards[i]) {
        write_tensor(tensor, writer);
        ++done_.tensors;
      }
      writer.finish();
      ++done_.files;
    }
    write_shard_index(folder, shards);
    return done_;
  }

 private:
  std::vector<Planned> planned() {
    std::vector<Planned> tensors;
    for (const auto& [name, key] : keys_) {
      const auto& record = manifest_.tensors.at(key);
      const bool is_cast = options_.dtype && at::isFloatingType(record.dtype);
      tensors.push_back(
          {name, is_cast ? *options_.dtype : record.dtype, record.shape});
      total_ += tensors.back().bytes();
    }
    return tensors;
  }

  void write_tensor(const Planned& tensor, WeightWriter& writer) {
    const auto& key = keys_.at(tensor.name);
    const auto dtype = manifest_.tensors.at(key).dtype;
    checkpoint::for_each_run(
        tensor.shape,
        static_cast<int64_t>(c10::elementSize(dtype)),
        kTensorRunBytes,
        [&](const std::vector<int64_t>& offset,
            const std::vector<int64_t>& shape) {
          const auto block = at::empty(shape, at::TensorOptions().dtype(dtype));
          reader_.read_box(
              key,
              offset,
              shape,
              {static_cast<std::byte*>(block.mutable_data_ptr()),
               block.nbytes()});
          const auto written = rounded_for_export(
              block, tensor.dtype, {.name = tensor.name, .offset = offset});
          writer.append(written);
          done_.bytes += static_cast<int64_t>(written.nbytes());
          if (options_.progress) {
            options_.progress(done_.bytes, total_, tensor.name);
          }
        });
  }

  const ExportTensorsOptions& options_;
  checkpoint::StepPin pin_;
  checkpoint::Manifest manifest_;
  checkpoint::ChunkReader reader_;
  std::map<std::string, std::string> keys_;
  ExportedTensors done_;
  int64_t total_ = 0;
};

} // namespace

ExportedTensors export_tensors(
    const fs::path& step_folder,
    const fs::path& path,
    const ExportTensorsOptions& options) {
  const at::NoGradGuard no_grad;
  // Ignores a trailing slash: the filename of "out/" is empty.
  const auto target = path.has_filename() ? path : path.parent_path();
  check_is_free(target);
  if (options.max_shard_bytes < 1) {
    refuse_export(fmt::format(
        "got a file size of {} bytes, expected at least 1",
        options.max_shard_bytes));
  }
  TensorExport exporter(step_folder, options);
  NewFolder made(target);
  const bool is_one_file = target.extension() == kTensorSuffix;
  const auto done = exporter.write_to(made.folder(), is_one_file);
  if (is_one_file) {
    made.commit_file(shard_name(0, 1));
  } else {
    made.commit();
  }
  return done;
}

} // namespace weft::hf
