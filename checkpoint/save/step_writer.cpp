#include "checkpoint/save/step_writer.h"

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/files/text.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

constexpr int64_t kRunBytes = 4 << 20;

std::filesystem::path checked(
    const std::filesystem::path& checkpoints,
    int64_t step) {
  std::error_code ignored;
  const auto exists = [&](const std::filesystem::path& path) {
    return std::filesystem::symlink_status(path, ignored).type() !=
           std::filesystem::file_type::not_found;
  };
  if (exists(checkpoints / kManifestName)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "[checkpoint] {} is a checkpoint and cannot be modified. Give the "
        "folder in which step-{} is to be created",
        checkpoints.string(),
        step));
  }
  const auto path = step_path(checkpoints, step);
  if (exists(path)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "[checkpoint] {} already exists, and Weft does not overwrite "
        "checkpoints. Move it away, or save another step",
        path.string()));
  }
  return checkpoints;
}

} // namespace

StepWriter::StepWriter(
    const std::filesystem::path& checkpoints,
    Manifest manifest,
    StepWriterOptions options)
    : checkpoints_(checked(checkpoints, manifest.step)),
      is_folder_new_(!std::filesystem::exists(checkpoints)),
      is_lock_new_(!StoreLock::has_file(checkpoints)),
      manifest_(std::move(manifest)),
      options_(std::move(options)),
      lock_(checkpoints) {
  options_.sha256 = options_.sha256 || !options_.hmac_key.empty();
  temporary_ = begin_step(checkpoints_, manifest_.step);
}

StepWriter::~StepWriter() {
  if (temporary_.empty()) {
    return;
  }
  discard_step(temporary_);
  if (is_lock_new_) {
    lock_.remove_file();
  }
  if (is_folder_new_) {
    std::error_code ignored; // others may have put something there
    std::filesystem::remove(checkpoints_, ignored);
  }
}

void StepWriter::write_file(
    const std::string& name,
    const std::vector<StreamedTensor>& tensors,
    const ReadBox& read,
    const std::function<void(int64_t bytes)>& done) {
  WriteOptions options;
  options.step = manifest_.step;
  options.piece_bytes = manifest_.piece_bytes;
  options.fsync = options_.fsync;
  options.sha256 = options_.sha256;
  TensorStream stream(Folder::open(temporary_), name, tensors, options);
  for (const size_t index : stream.order()) {
    const auto& tensor = tensors[index];
    const auto item = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    for_each_run(
        tensor.shape,
        item,
        kRunBytes,
        [&](const std::vector<int64_t>& offset,
            const std::vector<int64_t>& shape) {
          auto in_whole = offset;
          for (size_t d = 0; d < in_whole.size(); ++d) {
            in_whole[d] += tensor.offset[d];
          }
          const auto bytes = element_count(shape) * item;
          buffer_.resize(static_cast<size_t>(bytes));
          read(index, in_whole, shape, buffer_);
          stream.append(buffer_);
          if (done) {
            done(bytes);
          }
        });
  }
  auto written = stream.finish();
  manifest_.files[written.name] = written.record;
  for (auto& [key, chunk] : written.chunks) {
    manifest_.tensors.at(key).chunks.push_back(std::move(chunk));
  }
}

std::filesystem::path StepWriter::commit() {
  stamp(manifest_);
  write_manifest(
      Folder::open(temporary_), manifest_, options_.fsync, options_.hmac_key);
  commit_step(
      checkpoints_,
      temporary_,
      manifest_.step,
      options_.fsync,
      MoveLatest::kForward);
  temporary_.clear();
  return step_path(checkpoints_, manifest_.step);
}

} // namespace weft::checkpoint
