#include "dtensor/tensor/deferred_state.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "dtensor/tensor/copied_view.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {

bool InitStep::overwrites_all() const {
  return kind == Kind::kFill || kind == Kind::kUniform || kind == Kind::kNormal;
}

bool DeferredState::is_random() const {
  return whole || std::ranges::any_of(steps, [](const auto& step) {
           return step.kind == InitStep::Kind::kUniform ||
                  step.kind == InitStep::Kind::kNormal;
         });
}

bool DeferredState::overwrites() const {
  return !steps.empty() && steps.front().overwrites_all();
}

bool is_deferred(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  return impl && impl->deferred;
}

void check_materialized(const at::Tensor& tensor, std::string_view op) {
  const auto* impl = dtensor_impl(tensor);
  TORCH_CHECK_VALUE(
      !impl || !impl->deferred ||
          (impl->spec().mesh_ndim() == 0 && impl->deferred->steps.empty() &&
           !impl->deferred->whole),
      "[",
      op,
      "] uses ",
      describe(tensor),
      ", which is not materialized. Call weft::dtensor::materialize(model, "
      "seed) first.");
  refresh(tensor);
}

} // namespace weft::dtensor
