#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/store/store.h"
#include "cli/checkpoint_text.h"
#include "config/suggest.h"
#include "mesh/error/error.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::Manifest;
using Json = nlohmann::ordered_json;

Json describe(const checkpoint::TensorRecord& tensor) {
  Json chunks = Json::array();
  for (const auto& chunk : tensor.chunks) {
    chunks.push_back(
        {{"file", chunk.file},
         {"offset", chunk.offset},
         {"shape", chunk.shape},
         {"bytes", {chunk.begin, chunk.end}}});
  }
  return {
      {"dtype", checkpoint::plain_name(tensor.dtype)},
      {"shape", tensor.shape},
      {"bytes", bytes_of(tensor)},
      {"placements", tensor.placements},
      {"mesh", tensor.mesh},
      {"chunks", chunks}};
}

Json describe(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = file.bytes;
  }
  Json tensors = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    tensors[name] = describe(tensor);
  }
  return {
      {"step", manifest.step},
      {"created", manifest.created},
      {"weft", manifest.weft_version},
      {"torch", manifest.torch_version},
      {"bytes", bytes_of(manifest)},
      {"files", files},
      {"tensors", tensors},
      {"state", base::parse_json<Json>(manifest.state)},
      {"layout", base::parse_json<Json>(manifest.layout)}};
}

std::string place_text(const checkpoint::TensorRecord& tensor) {
  return tensor.placements + (tensor.mesh.empty() ? "" : " on ") + tensor.mesh;
}

class Column {
 public:
  explicit Column(std::string title) { add(std::move(title)); }
  void add(std::string cell) {
    width_ = std::max(width_, cell.size());
    cells_.push_back(std::move(cell));
  }
  std::string padded(size_t row) const {
    return fmt::format("{:<{}}  ", cells_[row], width_);
  }

 private:
  std::vector<std::string> cells_;
  size_t width_ = 0;
};

void print_tensors(const Manifest& manifest) {
  std::vector<Column> columns;
  for (const char* title : {"tensor", "dtype", "shape", "size", "chunks"}) {
    columns.emplace_back(title);
  }
  std::vector<std::string> places = {"placed as"};
  for (const auto& [name, tensor] : manifest.tensors) {
    columns[0].add(name);
    columns[1].add(checkpoint::plain_name(tensor.dtype));
    columns[2].add(shape_text(tensor.shape));
    columns[3].add(size_text(bytes_of(tensor)));
    columns[4].add(std::to_string(tensor.chunks.size()));
    places.push_back(place_text(tensor));
  }
  for (size_t row = 0; row < places.size(); ++row) {
    std::string line;
    for (const auto& column : columns) {
      line += column.padded(row);
    }
    print(line + places[row]);
  }
}

void print_tensor(
    const std::string& name,
    const checkpoint::TensorRecord& tensor) {
  print(fmt::format(
      "{}: {} {}, {}",
      name,
      checkpoint::plain_name(tensor.dtype),
      shape_text(tensor.shape),
      size_text(bytes_of(tensor))));
  print("  placed as " + place_text(tensor));
  for (const auto& chunk : tensor.chunks) {
    print(fmt::format(
        "  {} at {}: {}, bytes {} to {}",
        shape_text(chunk.shape),
        shape_text(chunk.offset),
        chunk.file,
        chunk.begin,
        chunk.end));
  }
}

[[noreturn]] void refuse_tensor(
    const Manifest& manifest,
    const fs::path& path,
    const std::string& name) {
  std::string nearest;
  auto least = static_cast<int64_t>(name.size() / 3 + 1);
  for (const auto& [known, tensor] : manifest.tensors) {
    const auto distance = base::edit_distance(name, known);
    if (distance <= least) {
      least = distance;
      nearest = known;
    }
  }
  mesh::throw_error<mesh::UsageError>(fmt::format(
      "{} has no tensor \"{}\"{}",
      path.string(),
      name,
      nearest.empty() ? "" : "; did you mean " + nearest + "?"));
}

} // namespace

void inspect_checkpoint(const CheckpointArguments& arguments) {
  const auto path = newest_step_of(arguments.path);
  const checkpoint::StepPin pin(path);
  const auto manifest = checkpoint::read_manifest(
      pin.folder(), read_key(arguments.hmac_key_file));
  const auto& name = arguments.other;
  const auto tensor = manifest.tensors.find(name);
  if (!name.empty() && tensor == manifest.tensors.end()) {
    refuse_tensor(manifest, path, name);
  }
  if (arguments.json) {
    print(
        name.empty() ? describe(manifest)
                     : Json{{name, describe(tensor->second)}});
    return;
  }
  if (!name.empty()) {
    print_tensor(name, tensor->second);
    return;
  }
  print(fmt::format(
      "step {}, saved {} by weft {} with libtorch {}",
      manifest.step,
      manifest.created,
      manifest.weft_version,
      manifest.torch_version));
  print(fmt::format(
      "{} tensors, {} files, {}",
      manifest.tensors.size(),
      manifest.files.size(),
      size_text(bytes_of(manifest))));
  print_tensors(manifest);
  print("state " + manifest.state);
  print("layout " + manifest.layout);
}

} // namespace weft::cli
