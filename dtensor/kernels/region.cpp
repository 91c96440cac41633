#include "dtensor/kernels/region.h"

#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_hooks.h"

namespace weft::dtensor::kernels {
namespace {

using Stack = torch::jit::Stack;

template <class Visit>
void replace_tensors(c10::IValue& value, size_t argument, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      value = visit(argument, value.toTensor());
    }
  } else if (value.isTensorList()) {
    auto list = value.toTensorVector();
    for (auto& tensor : list) {
      tensor = tensor.defined() ? visit(argument, tensor) : tensor;
    }
    value = std::move(list);
  }
}

struct KernelRegion {
  /// A spec on the mesh of the region. Its own placements are not used.
  DTensorSpec common;
  /// For each mesh dim the Shard of the samples, or Replicate.
  Placements cuts;
};

Placements sharded_along(const Placements& cuts, int64_t dim) {
  Placements placements;
  for (const auto& cut : cuts) {
    placements.push_back(
        cut.is_shard() && dim >= 0 ? cut.with_tensor_dim(dim) : Replicate());
  }
  return placements;
}

// A tensor without a dim of samples (`dim` below 0) is used by all of them. If
// they are sharded, each rank has a term of its gradient.
Placements gradient_along(const Placements& cuts, int64_t dim) {
  auto placements = sharded_along(cuts, dim);
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (cuts[i].is_shard() && dim < 0) {
      placements[i] = Partial();
    }
  }
  return placements;
}

KernelRegion find_region(
    c10::ArrayRef<c10::IValue> arguments,
    const RegionDims& dims) {
  KernelRegion region;
  at::Tensor lead;
  int64_t lead_dim = RegionDims::kReplicated;
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto value = arguments[i];
    replace_tensors(value, i, [&](size_t, const at::Tensor& tensor) {
      const auto spec = common_spec({&tensor});
      if (region.common.mesh_ndim() == 0) {
        region.common = spec;
      }
      if (!lead.defined() && dims.arguments.at(i) >= 0) {
        lead = tensor;
        lead_dim = dims.arguments[i];
      }
      return tensor;
    });
  }
  region.cuts = Placements(region.common.mesh_ndim(), Replicate());
  if (is_dtensor(lead) && spec_of(lead).mesh_ndim() != 0) {
    for (int64_t i = 0; i < region.common.mesh_ndim(); ++i) {
      const auto& placement = spec_of(lead).placement(i);
      if (placement.is_shard(lead_dim)) {
        region.cuts[i] = placement;
      }
    }
    if (has_empty_part(region.common.with(region.cuts), lead.sizes())) {
      region.cuts.assign(region.cuts.size(), Replicate());
    }
  }
  return region;
}

int64_t sample_count(
    c10::ArrayRef<c10::IValue> arguments,
    const RegionDims& dims) {
  int64_t count = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (dims.arguments.at(i) >= 0 && count == 0) {
      auto value = arguments[i];
      replace_tensors(value, i, [&](size_t, const at::Tensor& tensor) {
        count = tensor.size(dims.arguments[i]);
        return tensor;
      });
    }
  }
  return count;
}

} // namespace

bool has_empty_part(const DTensorSpec& spec, c10::IntArrayRef sizes) {
  const auto& shape = spec.mesh().shape();
  std::vector<int64_t> coordinate(shape.size(), 0);
  for (int64_t rank = 0; rank < spec.mesh().size(); ++rank) {
    int64_t rest = rank;
    for (size_t d = shape.size(); d-- > 0;) {
      coordinate[d] = rest % shape[d];
      rest /= shape[d];
    }
    for (const int64_t size : local_sizes_at(spec, sizes, coordinate)) {
      if (size == 0) {
        return true;
      }
    }
  }
  return false;
}

void run_region(
    const c10::OperatorHandle& op,
    Stack& stack,
    const RegionDims& dims,
    const std::string& name) {
  const size_t count = op.schema().arguments().size();
  const size_t first = stack.size() - count;
  const auto arguments = torch::jit::last(stack, count);
  const auto region = find_region(arguments, dims);
  const int64_t samples = sample_count(arguments, dims);
  std::vector<at::Tensor> hooked;
  for (size_t i = 0; i < count; ++i) {
    replace_tensors(
        stack[first + i], i, [&](size_t argument, const at::Tensor& tensor) {
          if (dtensor_impl(tensor) && dtensor_impl(tensor)->parameter_hooks) {
            hooked.push_back(tensor);
          }
          const int64_t dim = dims.arguments[argument];
          if (!dims.made_by_modules.contains(argument)) {
            check_operands(name, region.common, {tensor});
          }
          return to_local_impl(
              place(tensor, region.common),
              region.common.with(sharded_along(region.cuts, dim)),
              gradient_along(region.cuts, dim),
              name);
        });
  }
  op.callBoxed(stack);
  const size_t returns = op.schema().returns().size();
  for (size_t i = 0; i < returns; ++i) {
    const int64_t dim = dims.returns.at(i);
    replace_tensors(
        stack[stack.size() - returns + i],
        i,
        [&](size_t, const at::Tensor& local) {
          auto sizes = local.sizes().vec();
          if (dim >= 0) {
            sizes[dim] = samples;
          }
          auto output = from_local_impl(
              local.contiguous(),
              region.common.with(sharded_along(region.cuts, dim)),
              sizes,
              row_major_strides(sizes),
              name);
          for (const auto& parameter : hooked) {
            use_in_backward(output, {&parameter});
          }
          return output;
        });
  }
}

} // namespace weft::dtensor::kernels
