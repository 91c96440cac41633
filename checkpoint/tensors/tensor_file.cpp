#include "checkpoint/tensors/tensor_file.h"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/files/file_stream.h"
#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/tensor_header.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

using ConstBytes = std::span<const std::byte>;

[[noreturn]] void refuse_file(
    const std::string& name,
    const std::string& what) {
  mesh::throw_error<mesh::UsageError>(
      fmt::format("[checkpoint] file {}: {}", name, what));
}

TensorHeader describe(
    const std::string& name,
    const std::vector<FileTensor>& tensors,
    const WriteOptions& options) {
  TensorHeader header;
  header.metadata[kStepKey] = std::to_string(options.step);
  for (const auto& tensor : tensors) {
    const auto& data = tensor.data;
    const auto label = fmt::format("tensor {}", in_quotes(tensor.key));
    if (!data.defined() || !data.device().is_cpu() || !data.is_contiguous() ||
        data.is_conj() || data.is_neg()) {
      refuse_file(
          name,
          label +
              " is not a plain contiguous tensor on the CPU. Pass a contiguous "
              "CPU tensor without a conj or neg bit");
    }
    const bool is_whole = data.sizes() == tensor.global_shape;
    if (data.numel() == 0 && !is_whole) {
      refuse_file(
          name, label + " is an empty piece of a larger tensor. Leave it out");
    }
    const auto [entry, is_new] = header.tensors.insert(
        {tensor.key,
         {data.scalar_type(),
          data.sizes().vec(),
          0,
          0,
          tensor.offset,
          tensor.global_shape}});
    if (!is_new) {
      refuse_file(name, label + " is repeated in it");
    }
    const auto& whole = tensor.global_shape;
    bool inside = tensor.offset.size() == whole.size() &&
                  entry->second.shape.size() == whole.size() &&
                  element_count(whole) >= 0;
    for (size_t d = 0; inside && d < whole.size(); ++d) {
      inside = tensor.offset[d] >= 0 &&
               tensor.offset[d] <= whole[d] - entry->second.shape[d];
    }
    if (!inside) {
      refuse_file(
          name,
          fmt::format(
              "{}: {} at {} is not inside {}",
              label,
              to_text(entry->second.shape),
              to_text(tensor.offset),
              to_text(whole)));
    }
  }
  return header;
}

} // namespace

std::string tensor_file_name(int64_t writer, int64_t index) {
  return fmt::format("shard-{:05}-{:05}.safetensors", writer, index);
}

WrittenFile write_tensor_file(
    const Folder& folder,
    const std::string& name,
    const std::vector<FileTensor>& tensors,
    const WriteOptions& options) {
  auto header = describe(name, tensors, options);
  const auto head = make_header(header);
  WrittenFile written{name, {header.bytes, header.bytes, hash(head)}, {}};
  if (options.sha256) {
    written.record.header_sha256 = sha256(std::as_bytes(std::span(head)));
  }
  std::vector<const FileTensor*> order;
  for (const auto& tensor : tensors) {
    order.push_back(&tensor);
    written.record.bytes =
        std::max(written.record.bytes, header.tensors.at(tensor.key).end);
  }
  std::ranges::sort(order, {}, [&](const FileTensor* tensor) {
    const auto& entry = header.tensors.at(tensor->key);
    return std::pair(entry.begin, entry.end);
  });

  auto file = folder.create_file(name);
  FileStream stream(
      file, written.record.bytes, options.fsync, options.rate_limiter);
  stream.append(std::as_bytes(std::span(head)));
  const auto piece = static_cast<size_t>(options.piece_bytes);
  for (const auto* tensor : order) {
    const auto& entry = header.tensors.at(tensor->key);
    Chunk chunk{name, tensor->offset, entry.shape, entry.begin, entry.end, {}};
    const ConstBytes data(
        static_cast<const std::byte*>(tensor->data.const_data_ptr()),
        static_cast<size_t>(entry.end - entry.begin));
    for (size_t at = 0; at < data.size(); at += piece) {
      const auto part = data.subspan(at, std::min(piece, data.size() - at));
      chunk.piece_hashes.push_back(hash(part));
      if (options.sha256) {
        chunk.piece_sha256.push_back(sha256(part));
      }
      stream.append(part);
    }
    written.chunks.emplace_back(tensor->key, std::move(chunk));
  }
  stream.finish();
  file.close();
  return written;
}

} // namespace weft::checkpoint
