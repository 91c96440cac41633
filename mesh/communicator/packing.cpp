#include "mesh/communicator/packing.h"

#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>

namespace weft::mesh {
namespace {

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Returns true if the non-empty tensors are adjacent in one storage. Returns
// false if all are empty.
bool are_adjacent(const std::vector<at::Tensor>& tensors) {
  const at::Tensor* previous = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) {
      continue;
    }
    if (!is_plain(tensor) || (previous && !previous->is_alias_of(tensor)) ||
        (previous && previous->storage_offset() + previous->numel() !=
                         tensor.storage_offset())) {
      return false;
    }
    previous = &tensor;
  }
  return previous != nullptr;
}

at::Tensor view_adjacent(
    const std::vector<at::Tensor>& tensors,
    int64_t numel) {
  for (const at::Tensor& tensor : tensors) {
    // view(-1) would keep the arbitrary stride of a tensor of one element.
    if (tensor.numel() > 0) {
      return tensor.as_strided({numel}, {1}, tensor.storage_offset());
    }
  }
  return {};
}

} // namespace

Packed::Packed(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  counts_.reserve(tensors_.size());
  for (const at::Tensor& tensor : tensors_) {
    counts_.push_back(tensor.numel());
  }
  const int64_t numel =
      std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
  is_view_ = are_adjacent(tensors_);
  buffer_ = is_view_ ? view_adjacent(tensors_, numel)
                     : at::empty({numel}, tensors_.front().options());
}

Packed Packed::input(const std::vector<at::Tensor>& tensors) {
  Packed packed(tensors);
  if (!packed.is_view_) {
    packed.copy_in();
  }
  return packed;
}

Packed Packed::output(std::vector<at::Tensor> tensors) {
  return Packed(std::move(tensors));
}

void Packed::copy_in() const {
  int64_t offset = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    buffer_.narrow(0, offset, counts_[i])
        .view(tensors_[i].sizes())
        .copy_(tensors_[i]);
    offset += counts_[i];
  }
}

std::function<void()> Packed::unpack() const {
  if (is_view_) {
    return {};
  }
  return [tensors = tensors_, counts = counts_, buffer = buffer_] {
    int64_t offset = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].copy_(
          buffer.narrow(0, offset, counts[i]).view(tensors[i].sizes()));
      offset += counts[i];
    }
  };
}

} // namespace weft::mesh
