#include "dtensor/tensor/implicit_redistribution.h"

#include <c10/util/Exception.h>

#include "dtensor/redistribute/redistribute_plan.h"
#include "dtensor/tensor/dtensor.h"

namespace weft::dtensor::detail {

void refuse_implicit_redistribution(
    std::string_view op,
    const at::Tensor& tensor,
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::function_ref<std::string()> operands) {
  if (from == to) {
    return;
  }
  const auto bytes = redistributed_bytes(
      from, to, tensor.sizes(), static_cast<int64_t>(tensor.element_size()));
  const auto* options = explicit_redistribution();
  if (bytes == 0 && !options->strict) {
    return;
  }
  const auto message = c10::str(
      "[",
      op,
      "] would redistribute ",
      describe(tensor),
      " from ",
      to_string(from.placements()),
      " to ",
      to_string(to.placements()),
      ": ",
      static_cast<int64_t>(bytes),
      " bytes to each rank, which an ExplicitRedistribution scope forbids; "
      "operands ",
      operands(),
      ". Call redistribute(x, ",
      to_string(to.placements()),
      ") before it, or end the scope. (",
      from.mesh().describe_rank(),
      ")");
  if (options->mode == ExplicitRedistribution::Mode::kRaise) {
    TORCH_CHECK_VALUE(false, message);
  }
  if (is_first_warning(op)) {
    TORCH_WARN(message);
  }
}

} // namespace weft::dtensor::detail
