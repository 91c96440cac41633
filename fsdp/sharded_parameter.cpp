#include "fsdp/sharded_parameter.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::fsdp {
namespace {

int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.storage().unsafeGetStorageImpl();
}

// libtorch 2.11 cannot clear the error message that refuse_access() sets, so
// none is set there. An op on freed memory then ends the process.
template <class Storage>
constexpr bool kCanRefuse = requires(Storage& storage) {
  storage.clear_data_ptr_access_error_msg_();
};

template <class Storage>
void allow_access(Storage& storage) {
  if constexpr (kCanRefuse<Storage>) {
    storage.clear_data_ptr_access_error_msg_();
  }
}

template <class Storage>
void refuse_access(Storage& storage, const std::string& name) {
  if constexpr (kCanRefuse<Storage>) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(fmt::format(
        "[fsdp] the rows of \"{}\" are not all here: they were given away "
        "after the parameter's last use. Call the module that has it through "
        "weft::dtensor::call(), so that backward brings them back, or set "
        "reshard_after_forward to false for its unit. Keep the "
        "FullyShardedDataParallel that ran forward until backward has ended.",
        name));
  }
}

} // namespace

ShardedParameter::ShardedParameter(
    std::string name,
    const at::Tensor& parameter,
    ShardedPlacement placement,
    at::ScalarType dtype,
    int64_t ranks,
    int64_t rank)
    : name_(std::move(name)),
      parameter_(parameter),
      placement_(std::move(placement)),
      ranks_(ranks),
      rank_(rank) {
  const at::NoGradGuard no_grad;
  const auto* impl = dtensor::dtensor_impl(parameter_);
  const auto sizes = dtensor::local_sizes(placement_.unsharded, impl->sizes());
  if (!sizes.empty()) {
    rows_ = sizes.front();
    part_rows_ = (rows_ + ranks_ - 1) / ranks_;
    for (size_t i = 1; i < sizes.size(); ++i) {
      row_numel_ *= sizes[i];
    }
  }
  part_numel_ = part_rows_ * row_numel_;
  shard_ = impl->local().contiguous();
  const auto options = shard_.options().dtype(dtype);
  whole_ = at::empty_strided(
      sizes, dtensor::dense_strides(sizes, impl->strides()), options);
  whole_to_fill_ =
      tensor_in(whole_.storage(), whole_.sizes(), whole_.strides(), options);
  release_memory();
}

int64_t ShardedParameter::unsharded_bytes() const {
  return static_cast<int64_t>(storage_of(whole_).nbytes());
}

int64_t ShardedParameter::first_row(int64_t rank) const {
  return parameter_.dim() == 0 ? 0 : std::min(rank * part_rows_, rows_);
}

int64_t ShardedParameter::row_count(int64_t rank) const {
  return parameter_.dim() == 0
             ? 1
             : std::clamp<int64_t>(rows_ - rank * part_rows_, 0, part_rows_);
}

at::Tensor ShardedParameter::rows_of_part(const at::Tensor& part, int64_t rank)
    const {
  auto sizes = whole_.sizes().vec();
  if (!sizes.empty()) {
    sizes.front() = row_count(rank);
  }
  return part.narrow(0, 0, row_count(rank) * row_numel_).view(sizes);
}

at::Tensor ShardedParameter::rows_of_whole(
    const at::Tensor& whole,
    int64_t rank) const {
  return whole.dim() == 0 ? whole
                          : whole.narrow(0, first_row(rank), row_count(rank));
}

// Padding follows the last row, so the rows of all full parts are visited as
// one contiguous block.
template <class Visit>
void ShardedParameter::visit_rows(
    const at::Tensor& whole,
    const at::Tensor& parts,
    const Visit& visit) const {
  const int64_t full = rows_ / std::max<int64_t>(part_rows_, 1);
  int64_t rank = 0;
  if (whole.dim() > 0 && whole.is_contiguous() && full > 1) {
    visit(
        whole.view({-1})
            .narrow(0, 0, full * part_numel_)
            .view({full, part_numel_}),
        parts.narrow(0, 0, full));
    rank = full;
  }
  for (; rank < ranks_; ++rank) {
    if (row_count(rank) * row_numel_ > 0) {
      visit(rows_of_whole(whole, rank), rows_of_part(parts[rank], rank));
    }
  }
}

void ShardedParameter::move_shard_to(const at::Tensor& part) {
  TORCH_INTERNAL_ASSERT(!is_unsharded_ && part.numel() == part_numel_);
  const at::NoGradGuard no_grad;
  auto shard = rows_of_part(part, rank_);
  shard.copy_(shard_);
  shard_ = shard;
  dtensor::dtensor_impl(parameter_)->reset_local(shard_, placement_.sharded);
}

void ShardedParameter::adopt_new_shard() {
  auto* impl = dtensor::dtensor_impl(parameter_);
  if (impl->local().is_same(shard_)) {
    return;
  }
  const auto& local = impl->local();
  const auto where_from = [](const at::Tensor& tensor) {
    return fmt::format(
        "{} {} on {}",
        c10::str(tensor.sizes()),
        c10::toString(tensor.scalar_type()),
        tensor.device().str());
  };
  TORCH_CHECK_VALUE(
      impl->spec() == placement_.sharded &&
          where_from(local) == where_from(shard_),
      "[fsdp] \"",
      name_,
      "\" is ",
      impl->spec().to_string(),
      ", local tensor ",
      where_from(local),
      ", and was ",
      placement_.sharded.to_string(),
      ", ",
      where_from(shard_),
      ", when its unit was created. Convert and place the model before its "
      "first forward.");
  const at::NoGradGuard no_grad;
  shard_.copy_(local);
  impl->reset_local(shard_, placement_.sharded);
}

void ShardedParameter::unshard(const at::Tensor& parts, MemoryPool& memory) {
  TORCH_INTERNAL_ASSERT(!is_unsharded_);
  const at::NoGradGuard no_grad;
  auto& storage = storage_of(whole_);
  storage.set_data_ptr_noswap(memory.take(unsharded_bytes(), whole_.device()));
  allow_access(storage);
  visit_rows(whole_to_fill_, parts, [](const auto& rows, const auto& part) {
    rows.copy_(part);
  });
  switch_to(whole_);
}

void ShardedParameter::unshard_in_full_precision(const at::Tensor& parts) {
  TORCH_INTERNAL_ASSERT(!is_unsharded_);
  const at::NoGradGuard no_grad;
  full_precision_ =
      at::empty_strided(whole_.sizes(), whole_.strides(), shard_.options());
  visit_rows(full_precision_, parts, [](const auto& rows, const auto& part) {
    rows.copy_(part);
  });
  switch_to(full_precision_);
}

void ShardedParameter::switch_to(const at::Tensor& unsharded) {
  dtensor::dtensor_impl(parameter_)
      ->reset_local(unsharded, placement_.unsharded);
  version_ = version_of(parameter_);
  is_written_back_ = false;
  is_unsharded_ = true;
}

void ShardedParameter::write_back() {
  TORCH_INTERNAL_ASSERT(is_unsharded_);
  const at::NoGradGuard no_grad;
  const auto* impl = dtensor::dtensor_impl(parameter_);
  TORCH_CHECK_VALUE(
      impl->spec() == placement_.unsharded &&
          impl->local().sizes() == whole_.sizes() &&
          impl->local().scalar_type() == dtype(),
      "[fsdp] \"",
      name_,
      "\" was set to another placement or dtype while it was unsharded. "
      "Convert and place the model before its first forward.");
  shard_.copy_(rows_of_whole(impl->local(), rank_));
  is_written_back_ = true;
  version_ = version_of(parameter_);
}

void ShardedParameter::reshard(MemoryPool& memory) {
  TORCH_INTERNAL_ASSERT(is_unsharded_);
  is_unsharded_ = false;
  auto* impl = dtensor::dtensor_impl(parameter_);
  const auto full_precision = std::exchange(full_precision_, at::Tensor());
  const auto& unsharded = full_precision.defined() ? full_precision : whole_;
  const bool was_set = !impl->local().is_same(unsharded) &&
                       !std::exchange(is_written_back_, false);
  impl->reset_local(shard_, placement_.sharded);
  if (!full_precision.defined()) {
    memory.give(release_memory(), unsharded_bytes());
  }
  TORCH_CHECK(
      version_of(parameter_) == version_ && !was_set,
      "[fsdp] \"",
      name_,
      "\" was written to while it was unsharded; the new values are lost. A "
      "forward pass with a graph and without a backward leaves the outermost "
      "unit unsharded: run it under NoGradGuard, or call reshard(). To write "
      "to full parameters, use FullParameters with write_back.");
}

at::DataPtr ShardedParameter::release_memory() {
  auto& storage = storage_of(whole_);
  auto data = storage.set_data_ptr(at::DataPtr(nullptr, whole_.device()));
  refuse_access(storage, name_);
  return data;
}

void ShardedParameter::write_gradient(
    const at::Tensor& local,
    double divisor,
    const at::Tensor& parts) const {
  const at::NoGradGuard no_grad;
  TORCH_INTERNAL_ASSERT(local.sizes() == whole_.sizes());
  visit_rows(local, parts, [&](const auto& rows, const auto& part) {
    data_parallel::copy_divided(part, rows, divisor);
  });
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    const int64_t numel = row_count(rank) * row_numel_;
    if (numel < part_numel_) {
      parts[rank].narrow(0, numel, part_numel_ - numel).zero_();
    }
  }
}

void ShardedParameter::add_to_own_rows(
    const at::Tensor& unsharded,
    const at::Tensor& sharded,
    double factor) const {
  // Every rank has a parameter without dims, so only rank 0 adds it.
  if (parameter_.dim() > 0 || rank_ == 0) {
    rows_of_whole(unsharded, rank_).add_(sharded, factor);
  }
}

at::Tensor ShardedParameter::sharded_gradient(
    const at::Tensor& part,
    const dtensor::DTensorSpec& spec) const {
  return dtensor::make_dtensor(
      rows_of_part(part, rank_).detach(),
      spec,
      parameter_.sizes(),
      parameter_.strides());
}

} // namespace weft::fsdp
