#include "mesh/communicator/reduction.h"

#include <cstddef>
#include <vector>

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include "mesh/communicator/row_reduction.h"

namespace weft::mesh {
namespace {

void accumulate(at::Tensor& sum, const at::Tensor& part, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      sum.add_(part);
      return;
    case ReduceOp::kProduct:
      sum.mul_(part);
      return;
    case ReduceOp::kMin:
      at::minimum_out(sum, sum, part);
      return;
    case ReduceOp::kMax:
      at::maximum_out(sum, sum, part);
      return;
  }
}

void reduce_on_host(
    const at::Tensor& output,
    const at::Tensor& parts,
    ReduceOp op) {
  std::vector<const void*> rows;
  const auto* row = static_cast<const std::byte*>(parts.const_data_ptr());
  for (int64_t i = 0; i < parts.size(0); ++i, row += output.nbytes()) {
    rows.push_back(row);
  }
  reduce_row_pointers(
      output.mutable_data_ptr(),
      rows.data(),
      parts.size(0),
      output.numel(),
      output.scalar_type(),
      op);
}

bool is_narrow_float(c10::ScalarType dtype) {
  return c10::isFloatingType(dtype) && c10::elementSize(dtype) < 4;
}

} // namespace

void reduce_rows(
    const at::Tensor& output,
    const at::Tensor& parts,
    ReduceOp op) {
  if (output.is_cpu() && output.is_contiguous() && parts.is_contiguous()) {
    reduce_on_host(output, parts, op);
    return;
  }
  const bool widen = is_narrow_float(output.scalar_type());
  at::Tensor sum = output;
  if (widen) {
    sum = parts[0].to(at::kFloat);
  } else {
    output.copy_(parts[0]);
  }
  for (int64_t row = 1; row < parts.size(0); ++row) {
    accumulate(sum, widen ? parts[row].to(at::kFloat) : parts[row], op);
  }
  if (op == ReduceOp::kAvg) {
    sum.div_(parts.size(0));
  }
  if (widen) {
    output.copy_(sum);
  }
}

} // namespace weft::mesh
