#include "checkpoint/load/shard_loader.h"

#include <span>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "checkpoint/load/convert.h"
#include "checkpoint/save/held_shards.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

std::span<std::byte> mutable_bytes(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

/// Returns true if values can be read directly into the memory of the tensor.
bool is_readable_into(const at::Tensor& local) {
  return local.is_contiguous() && local.device().is_cpu() && !local.is_neg() &&
         !local.is_conj();
}

std::vector<HeldShard> own_boxes(const SaveItem& item) {
  std::vector<int64_t> coordinate;
  for (int64_t i = 0; i < item.spec.mesh_ndim(); ++i) {
    coordinate.push_back(item.spec.mesh().coordinate(i));
  }
  return held_shards(item.spec, item.sizes, coordinate);
}

at::Tensor view_of(const at::Tensor& part, const HeldShard& held) {
  auto view = part;
  for (size_t d = 0; d < held.at.size(); ++d) {
    view = view.narrow(static_cast<int64_t>(d), held.at[d], held.box.sizes[d]);
  }
  return view;
}

} // namespace

ShardLoader::ShardLoader(
    const Folder& folder,
    const Manifest& manifest,
    const std::vector<LoadTarget>& targets,
    bool all_or_nothing)
    : reader_(folder, manifest),
      targets_(targets),
      all_or_nothing_(all_or_nothing),
      buffers_(targets.size()) {}

at::Tensor ShardLoader::buffer(size_t i) {
  const auto& [item, source, dtype] = targets_[i];
  if (!buffers_[i].defined()) {
    const bool in_place =
        !all_or_nothing_ && dtype == item.dtype && is_readable_into(item.local);
    buffers_[i] = in_place
                      ? item.local
                      : at::empty(item.local.sizes(), at::TensorOptions(dtype));
  }
  return buffers_[i];
}

void ShardLoader::read(size_t i) {
  const auto& target = targets_[i];
  const auto part = buffer(i);
  for (const auto& held : own_boxes(target.item.item)) {
    const auto view = view_of(part, held);
    // A view that is narrowed in a dim other than the first is not contiguous.
    const auto into =
        view.is_contiguous() ? view : at::empty(view.sizes(), view.options());
    reader_.read_box(
        target.source, held.box.offset, held.box.sizes, mutable_bytes(into));
    if (!into.is_same(view)) {
      view.copy_(into);
    }
  }
}

void ShardLoader::convert(size_t i) {
  const at::NoGradGuard no_grad;
  const auto& [item, source, dtype] = targets_[i];
  auto values = buffer(i);
  buffers_[i].reset();
  if (values.is_same(item.local) || values.numel() == 0) {
    return;
  }
  try {
    values = convert_exactly(values, item.dtype, source);
  } catch (const c10::ValueError& error) {
    mesh::throw_error<ConversionError>(error.what_without_backtrace());
  }
  if (all_or_nothing_) {
    staged_.emplace_back(item.local, values);
  } else {
    item.local.copy_(values);
  }
}

void ShardLoader::commit() {
  const at::NoGradGuard no_grad;
  for (const auto& [local, values] : staged_) {
    local.copy_(values);
  }
  staged_.clear();
  for (const auto& target : targets_) {
    // The write bypassed autograd, so the version counter is increased here.
    const auto& item = target.item;
    const auto& changed = item.whole.defined() ? item.whole : item.local;
    changed.unsafeGetTensorImpl()->bump_version();
  }
}

} // namespace weft::checkpoint
