#include "checkpoint/tensors/tensor_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <tuple>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "checkpoint/files/text.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/hash.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

using Indices = std::vector<int64_t>;

TensorHeader header_of(
    const std::string& name,
    const std::vector<StreamedTensor>& tensors,
    const WriteOptions& options) {
  TensorHeader header;
  header.metadata[kStepKey] = std::to_string(options.step);
  for (const auto& tensor : tensors) {
    const auto [entry, is_new] = header.tensors.insert(
        {tensor.key,
         {tensor.dtype,
          tensor.shape,
          0,
          0,
          tensor.offset,
          tensor.global_shape}});
    if (!is_new) {
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "[checkpoint] file {}: tensor {} was given twice. Pass each tensor "
          "once",
          name,
          in_quotes(tensor.key)));
    }
  }
  return header;
}

} // namespace

TensorStream::TensorStream(
    const Folder& folder,
    std::string name,
    const std::vector<StreamedTensor>& tensors,
    const WriteOptions& options)
    : options_(options), file_(folder.create_file(name)) {
  auto header = header_of(name, tensors, options);
  const auto head = make_header(header);
  const auto bytes = std::as_bytes(std::span(head));
  written_.record = {header.bytes, header.bytes, hash(head)};
  if (options.sha256) {
    written_.record.header_sha256 = sha256(bytes);
  }
  order_.resize(tensors.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::ranges::sort(order_, {}, [&](size_t i) {
    const auto& entry = header.tensors.at(tensors[i].key);
    return std::tuple(entry.begin, entry.end, tensors[i].key);
  });
  for (const size_t i : order_) {
    const auto& entry = header.tensors.at(tensors[i].key);
    Chunk chunk;
    chunk.file = name;
    chunk.offset = tensors[i].offset;
    chunk.shape = tensors[i].shape;
    chunk.begin = entry.begin;
    chunk.end = entry.end;
    written_.record.bytes = std::max(written_.record.bytes, entry.end);
    written_.chunks.emplace_back(tensors[i].key, std::move(chunk));
  }
  written_.name = std::move(name);
  file_.reserve(written_.record.bytes);
  const std::array parts = {bytes};
  file_.write_at(0, parts);
  position_ = header.bytes;
  piece_.reserve(static_cast<size_t>(std::min(
      options_.piece_bytes,
      written_.record.bytes - written_.record.header_bytes)));
  skip_finished();
}

void TensorStream::skip_finished() {
  while (current_ < written_.chunks.size() &&
         written_.chunks[current_].second.end == position_) {
    ++current_;
  }
}

void TensorStream::end_piece() {
  auto& chunk = written_.chunks[current_].second;
  chunk.piece_hashes.push_back(hash(piece_));
  if (options_.sha256) {
    chunk.piece_sha256.push_back(sha256(piece_));
  }
  const std::array parts = {std::span<const std::byte>(piece_)};
  file_.write_at(position_, parts);
  position_ += std::ssize(piece_);
  piece_.clear();
  skip_finished();
}

void TensorStream::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    TORCH_INTERNAL_ASSERT(current_ < written_.chunks.size());
    const auto& chunk = written_.chunks[current_].second;
    // position_ is the begin of a piece of the chunk.
    const auto size = std::min(options_.piece_bytes, chunk.end - position_);
    const auto taken =
        std::min(bytes.size(), static_cast<size_t>(size) - piece_.size());
    piece_.insert(
        piece_.end(),
        bytes.begin(),
        bytes.begin() + static_cast<std::ptrdiff_t>(taken));
    bytes = bytes.subspan(taken);
    if (std::ssize(piece_) == size) {
      end_piece();
    }
  }
}

WrittenFile TensorStream::finish() {
  TORCH_INTERNAL_ASSERT(
      current_ == written_.chunks.size() && piece_.empty(),
      written_.name,
      " ends at byte ",
      position_,
      " of ",
      written_.record.bytes);
  if (options_.fsync) {
    file_.sync();
  }
  file_.close();
  return std::move(written_);
}

void for_each_run(
    const Indices& shape,
    int64_t item_bytes,
    int64_t max_bytes,
    const std::function<void(const Indices&, const Indices&)>& visit) {
  if (std::ranges::count(shape, 0) > 0) {
    return;
  }
  auto whole = shape.size(); // the dims from here on fit into a run
  auto row = item_bytes;
  while (whole > 0 && row <= max_bytes / shape[whole - 1]) {
    row *= shape[--whole];
  }
  Indices offset(shape.size(), 0);
  if (whole == 0) {
    visit(offset, shape);
    return;
  }
  // Along dim `cut`, a run has several rows. Along the dims before it, it has
  // 1.
  const auto cut = whole - 1;
  const auto rows = std::max<int64_t>(max_bytes / row, 1);
  auto box = shape;
  std::fill_n(box.begin(), cut, 1);
  while (true) {
    box[cut] = std::min(rows, shape[cut] - offset[cut]);
    visit(offset, box);
    offset[cut] += box[cut];
    auto d = cut;
    for (; d > 0 && offset[d] == shape[d]; --d) {
      offset[d] = 0;
      ++offset[d - 1];
    }
    if (d == 0 && offset[0] == shape[0]) {
      return;
    }
  }
}

} // namespace weft::checkpoint
