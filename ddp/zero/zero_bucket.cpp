#include "ddp/zero/zero_bucket.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

using torch::optim::OptimizerParamGroup;
using Kind = ZeroPart::Kind;

at::Tensor rows_of(const at::Tensor& parameter, int64_t ranks, int64_t rank) {
  const auto local = data_parallel::local_part(parameter);
  const auto range = dtensor::shard_range(local.size(0), ranks, rank);
  return local.narrow(0, range.begin, range.length);
}

at::Tensor gradient_rows(const ZeroEntry& entry, int64_t ranks, int64_t rank) {
  auto gradient = entry.parameter.grad();
  if (!gradient.defined()) {
    return {};
  }
  WEFT_CHECK(
      gradient.layout() == at::kStrided,
      "ZeroRedundancyOptimizer",
      (mesh::ErrorContext{mesh::detail::concat("rank ", rank, "/", ranks)}),
      "the gradient of a parameter of sizes ",
      entry.parameter.sizes(),
      " is sparse, and its rows cannot be split. Use "
      "ZeroPartition::kWholeParameters.");
  const auto* of_parameter = dtensor::dtensor_impl(entry.parameter);
  const auto* of_gradient = dtensor::dtensor_impl(gradient);
  if (of_parameter && of_gradient &&
      !(of_parameter->spec() == of_gradient->spec())) {
    gradient = dtensor::redistribute(
        gradient.detach(), of_parameter->spec().placements());
  }
  return rows_of(gradient, ranks, rank);
}

void move_to(at::Tensor parameter, const at::Tensor& memory) {
  memory.copy_(data_parallel::local_part(parameter));
  const auto* impl = dtensor::dtensor_impl(parameter);
  parameter.set_data(
      impl ? dtensor::make_dtensor(
                 memory, impl->spec(), impl->sizes(), impl->strides())
           : memory);
}

at::Tensor
view_as(const at::Tensor& flat, int64_t offset, const at::Tensor& like) {
  return like.is_non_overlapping_and_dense()
             ? flat.as_strided(like.sizes(), like.strides(), offset)
             : flat.narrow(0, offset, like.numel()).view(like.sizes());
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 || (a.const_data_ptr() == b.const_data_ptr() &&
                            a.strides() == b.strides());
}

} // namespace

LocalOptimizer LocalOptimizer::make(
    const std::vector<ZeroEntry>& entries,
    const std::vector<at::Tensor>& tensors,
    const ZeroOptimizerFactory& factory,
    const std::vector<OptimizerParamGroup>& outer) {
  LocalOptimizer inner;
  std::vector<OptimizerParamGroup> groups;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!tensors[i].defined()) {
      continue;
    }
    const auto group = entries[i].group;
    const auto found =
        std::find(inner.groups.begin(), inner.groups.end(), group);
    if (found == inner.groups.end()) {
      inner.groups.push_back(group);
      groups.emplace_back(
          std::vector<at::Tensor>{tensors[i]}, outer[group].options().clone());
    } else {
      groups[found - inner.groups.begin()].params().push_back(tensors[i]);
    }
  }
  if (!groups.empty()) {
    inner.optimizer = factory(std::move(groups));
    inner.copy_options(outer);
  }
  return inner;
}

void LocalOptimizer::copy_options(
    const std::vector<OptimizerParamGroup>& outer) {
  if (!optimizer) {
    return;
  }
  auto& own = optimizer->param_groups();
  WEFT_CHECK(
      own.size() == groups.size(),
      "ZeroRedundancyOptimizer",
      mesh::ErrorContext{"factory"},
      "factory: got an optimizer of ",
      own.size(),
      " parameter groups, expected ",
      groups.size(),
      ". Pass all groups that the factory receives to the optimizer.");
  for (size_t i = 0; i < own.size(); ++i) {
    own[i].set_options(outer[groups[i]].options().clone());
  }
}

ZeroBucket::ZeroBucket(
    std::vector<ZeroEntry> entries,
    mesh::Communicator group,
    Options options)
    : entries_(std::move(entries)),
      group_(std::move(group)),
      options_(std::move(options)),
      is_sharded_(entries_.front().part.kind == Kind::kSharded) {
  const at::NoGradGuard no_grad;
  if (options_.in_place && entries_.front().part.kind == Kind::kOwned) {
    lay_out();
  }
  for (auto& entry : entries_) {
    const auto& part = entry.part;
    if (part.kind == Kind::kReplicated ||
        (part.kind == Kind::kOwned && part.owner == rank())) {
      entry.own = entry.parameter;
    } else if (part.kind == Kind::kSharded) {
      const auto rows =
          rows_of(entry.parameter, group_.size(), rank()).detach();
      // Rank 0 also gets parameters without any rows, to count their steps.
      if (rows.numel() > 0 || rank() == 0) {
        entry.own = rows.requires_grad_(entry.parameter.requires_grad());
      }
    }
  }
}

void ZeroBucket::make_inner(
    const ZeroOptimizerFactory& factory,
    const std::vector<OptimizerParamGroup>& outer) {
  std::vector<at::Tensor> own;
  for (const auto& entry : entries_) {
    own.push_back(entry.own);
  }
  inner_ = LocalOptimizer::make(entries_, own, factory, outer);
}

void ZeroBucket::lay_out() {
  std::stable_sort(
      entries_.begin(),
      entries_.end(),
      [](const ZeroEntry& a, const ZeroEntry& b) {
        return a.part.owner < b.part.owner;
      });
  flat_counts_.assign(group_.size(), 0);
  int64_t numel = 0;
  for (const auto& entry : entries_) {
    const auto count = data_parallel::local_part(entry.parameter).numel();
    flat_counts_[entry.part.owner] += count;
    numel += count;
  }
  flat_ = at::empty(
      {numel}, data_parallel::local_part(entries_.front().parameter).options());
  refresh();
}

// Adopts the memory of parameters whose memory has changed since the bucket was
// made, e.g. by set_data().
void ZeroBucket::refresh() {
  int64_t offset = 0;
  for (auto& entry : entries_) {
    if (flat_.defined()) {
      const auto local = data_parallel::local_part(entry.parameter);
      WEFT_CHECK(
          local.dtype() == flat_.dtype() && local.device() == flat_.device(),
          "ZeroRedundancyOptimizer",
          (mesh::ErrorContext{
              mesh::detail::concat("rank ", rank(), "/", group_.size())}),
          "a parameter of sizes ",
          entry.parameter.sizes(),
          " is now ",
          local.dtype(),
          " on ",
          local.device(),
          ", but was ",
          flat_.dtype(),
          " on ",
          flat_.device(),
          " when the optimizer was created. Create the optimizer after "
          "module.to().");
      const auto memory = view_as(flat_, offset, local);
      if (!is_same_memory(local, memory)) {
        move_to(entry.parameter, memory);
      }
      offset += local.numel();
    } else if (is_sharded_ && entry.own.defined()) {
      const auto rows = rows_of(entry.parameter, group_.size(), rank());
      if (!is_same_memory(entry.own, rows)) {
        entry.own.set_data(rows);
      }
    }
  }
}

void ZeroBucket::update(const std::vector<OptimizerParamGroup>& outer) {
  const at::NoGradGuard no_grad;
  refresh();
  if (!inner_.optimizer) {
    return;
  }
  inner_.copy_options(outer);
  if (!is_sharded_) {
    inner_.optimizer->step();
    return;
  }
  for (auto& entry : entries_) {
    if (entry.own.defined()) {
      entry.own.mutable_grad() = gradient_rows(entry, group_.size(), rank());
    }
  }
  inner_.optimizer->step();
  for (auto& entry : entries_) {
    if (entry.own.defined()) {
      entry.own.mutable_grad().reset();
    }
  }
}

std::vector<at::Tensor> ZeroBucket::parts_of(const ZeroEntry& entry) const {
  std::vector<at::Tensor> parts;
  const auto local = data_parallel::local_part(entry.parameter);
  for (int64_t r = 0; r < group_.size(); ++r) {
    parts.push_back(
        is_sharded_             ? rows_of(entry.parameter, group_.size(), r)
        : r == entry.part.owner ? local
                                : at::empty({0}, local.options()));
  }
  return parts;
}

std::vector<at::Tensor> ZeroBucket::parts_of_rank(int64_t r) const {
  std::vector<at::Tensor> parts;
  for (const auto& entry : entries_) {
    if (is_sharded_) {
      parts.push_back(rows_of(entry.parameter, group_.size(), r));
    } else if (entry.part.owner == r) {
      parts.push_back(data_parallel::local_part(entry.parameter));
    }
  }
  return parts;
}

void ZeroBucket::gather_one_by_one(Gather& gather) {
  for (const auto& entry : entries_) {
    const auto parts = parts_of(entry);
    gather.works.push_back(
        group_.all_gather_uneven(parts, parts[rank()], options_.name));
  }
}

void ZeroBucket::gather_staged(Gather& gather) {
  std::vector<int64_t> counts;
  for (int64_t r = 0; r < group_.size(); ++r) {
    int64_t count = 0;
    for (const auto& part : parts_of_rank(r)) {
      count += part.numel();
    }
    counts.push_back(count);
  }
  const auto local = data_parallel::local_part(entries_.front().parameter);
  gather.staging = at::empty(
      {std::accumulate(counts.begin(), counts.end(), int64_t{0})},
      local.options());
  const auto outputs = gather.staging.split_with_sizes(counts);
  int64_t offset = 0;
  for (const auto& part : parts_of_rank(rank())) {
    outputs[rank()]
        .narrow(0, offset, part.numel())
        .view(part.sizes())
        .copy_(part);
    offset += part.numel();
  }
  gather.works.push_back(
      group_.all_gather_uneven(outputs, outputs[rank()], options_.name));
}

void ZeroBucket::start_gather() {
  if (entries_.front().part.kind == Kind::kReplicated) {
    return;
  }
  const at::NoGradGuard no_grad;
  gather_.emplace();
  if (flat_.defined()) {
    const auto outputs = flat_.split_with_sizes(flat_counts_);
    gather_->works.push_back(
        group_.all_gather_uneven(outputs, outputs[rank()], options_.name));
  } else if (options_.in_place || entries_.size() == 1) {
    gather_one_by_one(*gather_);
  } else {
    gather_staged(*gather_);
  }
}

void ZeroBucket::finish_gather() {
  if (!gather_) {
    return;
  }
  const at::NoGradGuard no_grad;
  auto gather = std::exchange(gather_, std::nullopt);
  for (auto& work : gather->works) {
    work.wait();
  }
  int64_t offset = 0;
  for (int64_t r = 0; gather->staging.defined() && r < group_.size(); ++r) {
    for (const auto& part : parts_of_rank(r)) {
      if (r != rank()) {
        part.copy_(
            gather->staging.narrow(0, offset, part.numel()).view(part.sizes()));
      }
      offset += part.numel();
    }
  }
  // As after an update in place, graphs that saved the parameter are invalid,
  // and so are cached copies of DTensors.
  for (const auto& entry : entries_) {
    entry.parameter.unsafeGetTensorImpl()->bump_version();
  }
}

} // namespace weft::ddp
