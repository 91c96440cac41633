#include "checkpoint/transfer/import_tensors.h"

#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/files/text.h"
#include "checkpoint/save/step_writer.h"
#include "checkpoint/tensors/tensor_file.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

[[noreturn]] void refuse_import(const std::string& what) {
  mesh::throw_error<mesh::UsageError>("[checkpoint] import: " + what);
}

// Returns the name in the files for each key.
std::map<std::string, std::string> keys_of(
    const Manifest& foreign,
    const ImportOptions& options) {
  std::map<std::string, std::string> names;
  for (const auto& [name, record] : foreign.tensors) {
    const auto key = options.key_of ? options.key_of(name) : name;
    std::string why;
    if (!is_tensor_name(key, why)) {
      refuse_import(fmt::format("{} becomes {}", in_quotes(name), why));
    }
    const auto dot = key.find('.');
    if (dot == 0 || dot == std::string::npos || dot + 1 == key.size()) {
      refuse_import(fmt::format(
          "tensor {} would get the key {}, but a key must have the form "
          "PREFIX.NAME. Rename it, e.g. to \"model.{}\"",
          in_quotes(name),
          in_quotes(key),
          name));
    }
    const auto [other, is_new] = names.emplace(key, name);
    if (!is_new) {
      refuse_import(fmt::format(
          "tensors {} and {} would both get the key {}. Rename one of them",
          in_quotes(other->second),
          in_quotes(name),
          in_quotes(key)));
    }
  }
  return names;
}

int64_t bytes_of_tensor(const TensorRecord& record) {
  return element_count(record.shape) *
         static_cast<int64_t>(c10::elementSize(record.dtype));
}

std::vector<std::vector<StreamedTensor>> plan_import(
    const std::map<std::string, std::string>& names,
    const Manifest& foreign,
    int64_t max_file_bytes) {
  std::vector<std::vector<StreamedTensor>> files;
  int64_t in_last = 0;
  for (const auto& [key, name] : names) {
    const auto& record = foreign.tensors.at(name);
    const auto bytes = bytes_of_tensor(record);
    if (files.empty() || in_last + bytes > max_file_bytes) {
      files.emplace_back();
      in_last = 0;
    }
    in_last += bytes;
    files.back().push_back(
        {key,
         record.dtype,
         record.shape,
         std::vector<int64_t>(record.shape.size(), 0),
         record.shape});
  }
  return files;
}

} // namespace

ImportedTensors import_tensors(
    const Folder& source,
    const Manifest& foreign,
    const std::filesystem::path& checkpoints,
    const ImportOptions& options) {
  const auto names = keys_of(foreign, options);
  Manifest manifest;
  manifest.step = options.step;
  int64_t total = 0;
  for (const auto& [key, name] : names) {
    const auto& record = foreign.tensors.at(name);
    manifest.tensors[key] = {record.dtype, record.shape, "", "", {}};
    total += bytes_of_tensor(record);
  }
  manifest.piece_bytes =
      choose_piece_bytes(total, options.sha256 || !options.hmac_key.empty());
  StepWriter writer(
      checkpoints,
      std::move(manifest),
      {options.fsync, options.sha256, options.hmac_key});
  ChunkReader reader(source, foreign);
  int64_t done = 0;
  int64_t index = 0;
  for (const auto& tensors :
       plan_import(names, foreign, options.max_file_bytes)) {
    const auto file = tensor_file_name(0, index++);
    writer.write_file(
        file,
        tensors,
        [&](size_t i,
            const std::vector<int64_t>& offset,
            const std::vector<int64_t>& shape,
            std::span<std::byte> out) {
          reader.read_box(names.at(tensors[i].key), offset, shape, out);
        },
        [&](int64_t bytes) {
          done += bytes;
          if (options.progress) {
            options.progress(done, total, file);
          }
        });
  }
  ImportedTensors imported;
  imported.path = writer.commit();
  imported.tensors = std::ssize(writer.manifest().tensors);
  imported.files = std::ssize(writer.manifest().files);
  for (const auto& [name, file] : writer.manifest().files) {
    imported.bytes += file.bytes;
  }
  return imported;
}

} // namespace weft::checkpoint
