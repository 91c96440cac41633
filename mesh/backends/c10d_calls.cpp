#include "mesh/backends/c10d_calls.h"

namespace weft::mesh {

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.view(at::kByte);
}

Backend::Counts byte_counts(Backend::Counts counts, const at::Tensor& tensor) {
  for (int64_t& count : counts) {
    count *= tensor.element_size();
  }
  return counts;
}

bool is_reducible(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    default:
      return c10d::ReduceOp::SUM;
  }
}

} // namespace weft::mesh
