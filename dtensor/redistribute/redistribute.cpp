#include "dtensor/redistribute/redistribute.h"

#include <c10/util/Exception.h>

#include "dtensor/redistribute/redistribute_run.h"

namespace weft::dtensor {
void check_partial_form(ReduceOp op, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(
      op != ReduceOp::kAvg || at::isFloatingType(dtype) ||
          at::isComplexType(dtype),
      "[redistribute] R to P(avg) of ",
      dtype,
      ": an average of integers is not defined. Redistribute to P(sum).");
  TORCH_CHECK_VALUE(
      op != ReduceOp::kProduct,
      "[redistribute] R to P(product) has no exact form. Redistribute to "
      "P(sum), P(avg), P(min) or P(max) instead.");
}

at::Tensor redistribute_local(
    const at::Tensor& local,
    c10::IntArrayRef global_sizes,
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name) {
  if (from == to) {
    return local;
  }
  RedistributeRun run(local, global_sizes, from, to, name);
  while (run.message()) {
    send(*run.message(), name).wait();
    run.advance();
  }
  return run.result();
}

} // namespace weft::dtensor
