#include "dtensor/tensor/started_redistribution.h"

#include <utility>

#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {

StartedRedistribution::StartedRedistribution(
    at::Tensor dtensor,
    const DTensorSpec& to,
    at::ScalarType dtype,
    std::string_view name)
    : source_(std::move(dtensor)),
      to_(to),
      run_(
          dtensor_impl(source_)->local().to(dtype),
          source_.sizes(),
          dtensor_impl(source_)->spec(),
          to,
          name) {
  while (run_.message()) {
    work_ = send(*run_.message(), name);
    if (run_.is_last_message()) {
      break;
    }
    work_.wait();
    run_.advance();
  }
}

bool StartedRedistribution::is_completed() const {
  return work_.is_completed();
}

at::Tensor StartedRedistribution::finish() {
  if (run_.message()) {
    work_.wait();
    run_.advance();
  }
  const auto* impl = dtensor_impl(source_);
  return make_dtensor(run_.result(), to_, impl->sizes(), impl->strides());
}

} // namespace weft::dtensor
