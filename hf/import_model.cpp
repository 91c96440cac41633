#include "hf/import_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "checkpoint/files/folder.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/store/store.h"
#include "checkpoint/tensors/tensor_file.h"
#include "hf/config_json.h"
#include "hf/json_file.h"
#include "hf/weight_reader.h"
#include "mesh/error/error.h"

namespace weft::hf {
namespace {

namespace fs = std::filesystem;

constexpr auto kMasterDtype = at::kFloat;

struct PartToWrite {
  const std::string* name;
  Box box;
};

// Plans the content of the files. Splits large tensors by rows into several
// files, because a file can contain a name only once.
std::vector<std::vector<PartToWrite>> plan_files(
    const TensorMap& map,
    int64_t max_file_bytes) {
  std::vector<std::vector<PartToWrite>> files(1);
  int64_t in_last = 0;
  for (const auto& [name, tensor] : map.model) {
    const auto rows = tensor.shape.front();
    int64_t row_bytes = sizeof(float);
    for (size_t d = 1; d < tensor.shape.size(); ++d) {
      row_bytes *= tensor.shape[d];
    }
    const auto max_rows = std::max<int64_t>(max_file_bytes / row_bytes, 1);
    for (int64_t row = 0; row < rows; row += max_rows) {
      Box box{Sizes(tensor.shape.size(), 0), tensor.shape};
      box.offset.front() = row;
      box.shape.front() = std::min(max_rows, rows - row);
      const auto bytes = box.shape.front() * row_bytes;
      if (!files.back().empty() &&
          (in_last + bytes > max_file_bytes || row > 0)) {
        files.emplace_back();
        in_last = 0;
      }
      files.back().push_back({&name, std::move(box)});
      in_last += bytes;
    }
  }
  return files;
}

// Returns the data about the model that export_model() needs.
std::string layout_of(const fs::path& folder) {
  const auto from = portable_path(folder);
  if (!checkpoint::is_utf8(from)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "import: {}: the path is not UTF-8, but a checkpoint stores the path "
        "of its model in UTF-8. Rename the folder",
        checkpoint::in_quotes(folder.string())));
  }
  return base::strict_json_text(nlohmann::ordered_json{
      {"config",
       read_small_file(
           checkpoint::Folder::open(folder), kConfigName, kMaxConfigBytes)},
      {"from", from}});
}

class Import {
 public:
  Import(
      const WeightReader& reader,
      const fs::path& temporary,
      int64_t max_file_bytes,
      const checkpoint::Progress& progress)
      : reader_(reader),
        folder_(checkpoint::Folder::open(temporary)),
        max_file_bytes_(max_file_bytes),
        progress_(progress) {}

  void write_files(checkpoint::Manifest& manifest) {
    for (const auto& [name, tensor] : reader_.map().model) {
      auto& record = manifest.tensors["model." + name];
      record.dtype = kMasterDtype;
      record.shape = tensor.shape;
      total_ += checkpoint::element_count(tensor.shape) *
                static_cast<int64_t>(c10::elementSize(kMasterDtype));
    }
    int64_t index = 0;
    for (const auto& parts : plan_files(reader_.map(), max_file_bytes_)) {
      auto written = write_file(parts, index++);
      manifest.files.emplace(written.name, written.record);
      for (auto& [key, chunk] : written.chunks) {
        manifest.tensors.at(key).chunks.push_back(std::move(chunk));
      }
    }
    checkpoint::write_manifest(folder_, manifest, /*sync=*/true);
  }

 private:
  checkpoint::WrittenFile write_file(
      const std::vector<PartToWrite>& parts,
      int64_t index) {
    std::vector<checkpoint::FileTensor> tensors;
    for (const auto& [name, box] : parts) {
      auto data = at::empty(box.shape, at::TensorOptions().dtype(kMasterDtype));
      reader_.read(*name, box, data);
      done_ += static_cast<int64_t>(data.nbytes());
      if (progress_) {
        progress_(done_, total_, *name);
      }
      tensors.push_back(
          {.key = "model." + *name,
           .offset = box.offset,
           .global_shape = reader_.map().model.at(*name).shape,
           .data = std::move(data)});
    }
    return checkpoint::write_tensor_file(
        folder_, checkpoint::tensor_file_name(0, index), tensors);
  }

  const WeightReader& reader_;
  checkpoint::Folder folder_;
  int64_t max_file_bytes_;
  const checkpoint::Progress& progress_;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

} // namespace

Imported import_model(
    const fs::path& folder,
    const fs::path& checkpoints,
    int64_t max_file_bytes,
    const checkpoint::Progress& progress) {
  const at::NoGradGuard no_grad;
  const auto config = read_config(folder);
  auto layout = layout_of(folder);
  const WeightReader reader(config.model, folder, "import");
  const auto path = checkpoint::step_path(checkpoints, 0);
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{} already exists and is not overwritten. Remove it, or give another "
        "path",
        path.string()));
  }
  const checkpoint::StoreLock lock(checkpoints);
  const auto temporary = checkpoint::begin_step(checkpoints, 0);
  auto clean_up =
      c10::make_scope_exit([&] { checkpoint::discard_step(temporary); });
  checkpoint::Manifest manifest;
  manifest.layout = std::move(layout);
  checkpoint::stamp(manifest);
  Import(reader, temporary, max_file_bytes, progress).write_files(manifest);
  checkpoint::commit_step(
      checkpoints,
      temporary,
      0,
      /*sync=*/true,
      checkpoint::MoveLatest::kForward);
  clean_up.release();
  Imported imported{
      .path = path,
      .tensors = std::ssize(manifest.tensors),
      .bytes = 0,
      .notice = reader.notice()};
  for (const auto& [name, file] : manifest.files) {
    imported.bytes += file.bytes;
  }
  return imported;
}

} // namespace weft::hf
