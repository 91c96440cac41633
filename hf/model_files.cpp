#include "hf/model_files.h"

#include <algorithm>
#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "checkpoint/files/folder.h"
#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/rounding.h"
#include "checkpoint/format/tensor_header.h"
#include "checkpoint/format/weight_index.h"
#include "hf/json_file.h"
#include "mesh/error/error.h"

namespace weft::hf {
namespace {

namespace fs = std::filesystem;
using checkpoint::in_quotes;
using checkpoint::throw_corrupt;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = checkpoint::kWeightIndexName;
// Limits the files of a model, because an index could list a million.
constexpr size_t kMaxFiles = 10'000;
constexpr int64_t kBlockBytes = 1 << 20;

checkpoint::File open_weights(
    const checkpoint::Folder& folder,
    const std::string& name) {
  if (!folder.has(name)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: {} does not exist, but {} lists it. Add the missing file",
        folder.path().string(),
        name,
        kIndexName));
  }
  const auto entries = folder.list();
  const auto entry =
      std::ranges::find(entries, name, &checkpoint::FolderEntry::name);
  if (entry == entries.end() || !entry->is_file) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: {} is not a regular file, and symbolic links are not followed. "
        "The Hugging Face cache contains links; download to a folder instead "
        "(hf download NAME --local-dir FOLDER)",
        folder.path().string(),
        name));
  }
  return folder.open_file(name);
}

std::map<std::string, std::string> read_index(
    const checkpoint::Folder& folder) {
  return checkpoint::parse_weight_index(
      read_small_file(folder, kIndexName, checkpoint::limits::kManifestBytes),
      (folder.path() / kIndexName).string());
}

// Rejects a shard, which a file of PyTorch's distributed checkpoints can
// contain.
void check_whole(
    const std::string& name,
    const checkpoint::HeaderTensor& tensor,
    const std::string& source) {
  const bool is_whole =
      (!tensor.global_shape || *tensor.global_shape == tensor.shape) &&
      (!tensor.offset ||
       std::ranges::all_of(*tensor.offset, [](int64_t n) { return n == 0; }));
  if (!is_whole) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: tensor {} is only a shard. Consolidate the files first",
        source,
        in_quotes(name)));
  }
}

struct Row {
  int64_t rows = 1;
  int64_t columns = 1;
};

Row rows_of(const std::vector<int64_t>& shape) {
  TORCH_INTERNAL_ASSERT(shape.size() == 1 || shape.size() == 2);
  return shape.size() == 1 ? Row{1, shape[0]} : Row{shape[0], shape[1]};
}

} // namespace

struct ModelFiles::State {
  checkpoint::Folder folder;
  std::map<std::string, FileTensor> tensors;
  std::vector<std::string> absent;
  std::string notice;
  mutable std::map<std::string, checkpoint::File> open;
  mutable std::vector<std::byte> block;
  mutable int64_t bytes_read = 0;

  void add_file(const std::string& name);
  const checkpoint::File& file_of(const FileTensor& tensor) const;
  void read(
      const std::string& name,
      const FileTensor& tensor,
      int64_t begin,
      std::span<std::byte> out) const;
  at::Tensor
  read_block(const std::string& name, const Row& corner, const Row& size) const;
  at::Tensor read_values(
      const std::string& name,
      const Row& corner,
      const Row& size,
      at::ScalarType to) const;
};

void ModelFiles::State::add_file(const std::string& name) {
  const auto file = open_weights(folder, name);
  const auto source = file.path().string();
  const auto header = checkpoint::parse_header(
      checkpoint::read_header(file, source), file.size(), source);
  for (const auto& [tensor, entry] : header.tensors) {
    check_whole(tensor, entry, source);
    const auto [place, is_new] = tensors.insert(
        {tensor,
         {.file = name,
          .dtype = entry.dtype,
          .shape = entry.shape,
          .begin = entry.begin,
          .end = entry.end}});
    if (!is_new) {
      throw_corrupt(
          source,
          fmt::format(
              "tensor {} is already in {}",
              in_quotes(tensor),
              place->second.file));
    }
  }
}

const checkpoint::File& ModelFiles::State::file_of(
    const FileTensor& tensor) const {
  constexpr size_t kMaxOpen = 64;
  const auto found = open.find(tensor.file);
  if (found != open.end()) {
    return found->second;
  }
  if (open.size() >= kMaxOpen) {
    open.clear();
  }
  return open.emplace(tensor.file, folder.open_file(tensor.file)).first->second;
}

void ModelFiles::State::read(
    const std::string& name,
    const FileTensor& tensor,
    int64_t begin,
    std::span<std::byte> out) const {
  const auto& file = file_of(tensor);
  const auto got = file.read_at(begin, out);
  bytes_read += got;
  if (got != std::ssize(out)) {
    throw_corrupt(
        file.path().string(),
        fmt::format(
            "tensor {} is truncated: the file ends at byte {}",
            in_quotes(name),
            begin + got));
  }
}

// Returns the values in the dtype of the file. They are valid until the next
// call.
at::Tensor ModelFiles::State::read_block(
    const std::string& name,
    const Row& corner,
    const Row& size) const {
  const auto& tensor = tensors.at(name);
  const auto item = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  const auto whole_columns = rows_of(tensor.shape).columns;
  block.resize(static_cast<size_t>(size.rows * size.columns * item));
  const std::span<std::byte> bytes(block);
  // Adjacent rows are read at once.
  const bool adjoin = size.columns == whole_columns;
  const auto run = bytes.size() / static_cast<size_t>(adjoin ? 1 : size.rows);
  for (size_t done = 0; done < bytes.size(); done += run) {
    const auto row = corner.rows + static_cast<int64_t>(done / run);
    read(
        name,
        tensor,
        tensor.begin + (row * whole_columns + corner.columns) * item,
        bytes.subspan(done, run));
  }
  return at::from_blob(
      block.data(),
      {size.rows, size.columns},
      at::TensorOptions().dtype(tensor.dtype));
}

at::Tensor ModelFiles::State::read_values(
    const std::string& name,
    const Row& corner,
    const Row& size,
    at::ScalarType to) const {
  const auto values = read_block(name, corner, size);
  const auto& tensor = tensors.at(name);
  const bool has_rows = tensor.shape.size() > 1;
  const checkpoint::TensorPlace place{
      .name = name,
      .offset = has_rows ? std::vector{corner.rows, corner.columns}
                         : std::vector{corner.columns}};
  try {
    return checkpoint::round_to(has_rows ? values : values[0], to, place)
        .view(values.sizes());
  } catch (const c10::ValueError& error) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: {}",
        file_of(tensor).path().string(),
        error.what_without_backtrace()));
  }
}

ModelFiles::ModelFiles(const fs::path& folder)
    : state_(
          new State{checkpoint::Folder::open(folder), {}, {}, {}, {}, {}, 0}) {
  const auto& opened = state_->folder;
  if (opened.has(kSingleName)) {
    state_->add_file(kSingleName);
    if (opened.has(kIndexName)) {
      state_->notice = fmt::format(
          "the weights are those of {}; {} is there too and is not read. "
          "Remove {} if the index is the newer one",
          kSingleName,
          kIndexName,
          kSingleName);
    }
    return;
  }
  if (!opened.has(kIndexName)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: the folder contains neither {} nor {}{}",
        folder.string(),
        kSingleName,
        kIndexName,
        opened.has("pytorch_model.bin") ||
                opened.has("pytorch_model.bin.index.json")
            ? "; pickled weights (pytorch_model.bin) are not supported. Save "
              "the model with safe_serialization=True"
            : ""));
  }
  const auto index = read_index(opened);
  std::set<std::string> files;
  for (const auto& [tensor, file] : index) {
    files.insert(file);
  }
  if (files.size() > kMaxFiles) {
    throw_corrupt(
        (folder / kIndexName).string(),
        fmt::format("{} files; at most {}", files.size(), kMaxFiles));
  }
  for (const auto& file : files) {
    state_->add_file(file);
  }
  for (const auto& [tensor, file] : index) {
    const auto found = state_->tensors.find(tensor);
    if (found == state_->tensors.end() || found->second.file != file) {
      state_->absent.push_back(fmt::format("{} ({})", tensor, file));
    }
  }
}

ModelFiles::ModelFiles(ModelFiles&&) noexcept = default;
ModelFiles::~ModelFiles() = default;

const fs::path& ModelFiles::folder() const {
  return state_->folder.path();
}

const std::map<std::string, FileTensor>& ModelFiles::tensors() const {
  return state_->tensors;
}

const std::string& ModelFiles::notice() const {
  return state_->notice;
}

const std::vector<std::string>& ModelFiles::absent() const {
  return state_->absent;
}

int64_t ModelFiles::bytes_read() const {
  return state_->bytes_read;
}

void ModelFiles::read_box(
    const std::string& name,
    const std::vector<int64_t>& offset,
    const at::Tensor& out) const {
  const at::NoGradGuard no_grad;
  const auto& tensor = state_->tensors.at(name);
  const auto whole = rows_of(tensor.shape);
  const auto box = rows_of(out.sizes().vec());
  const auto corner =
      offset.size() == 1 ? Row{0, offset[0]} : Row{offset[0], offset[1]};
  TORCH_INTERNAL_ASSERT(
      out.dim() == std::ssize(tensor.shape) && corner.rows >= 0 &&
      corner.columns >= 0 && corner.rows + box.rows <= whole.rows &&
      corner.columns + box.columns <= whole.columns);
  if (out.numel() == 0) {
    return;
  }
  const auto target = out.dim() == 1 ? out.unsqueeze(0) : out;
  const auto most =
      kBlockBytes / static_cast<int64_t>(c10::elementSize(tensor.dtype));
  // A row can be longer than a block, so its columns are split, too.
  const auto max_columns = std::min(box.columns, most);
  const auto max_rows = most / max_columns;
  for (int64_t r = 0; r < box.rows; r += max_rows) {
    for (int64_t c = 0; c < box.columns; c += max_columns) {
      const Row size{
          std::min(max_rows, box.rows - r),
          std::min(max_columns, box.columns - c)};
      target.narrow(0, r, size.rows)
          .narrow(1, c, size.columns)
          .copy_(state_->read_values(
              name,
              {corner.rows + r, corner.columns + c},
              size,
              out.scalar_type()));
    }
  }
}

} // namespace weft::hf
