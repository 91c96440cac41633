#include "ddp/reducer/local_norms.h"

#include <algorithm>
#include <memory>

#include "data_parallel/parameters/gradient_hooks.h"
#include "ddp/reducer/reducer.h"

namespace weft::ddp {
namespace {

std::vector<std::shared_ptr<Reducer>> reducers_of(
    const std::vector<at::Tensor>& parameters) {
  std::vector<std::shared_ptr<Reducer>> reducers;
  for (const auto& parameter : parameters) {
    for (const auto& owner : data_parallel::GradientHooks::owners_of(
             parameter, data_parallel::HookOwner::kReducer)) {
      const auto reducer = std::static_pointer_cast<Reducer>(owner);
      if (std::ranges::find(reducers, reducer) == reducers.end()) {
        reducers.push_back(reducer);
      }
    }
  }
  return reducers;
}

} // namespace

void enable_local_norms(const std::vector<at::Tensor>& parameters) {
  for (const auto& reducer : reducers_of(parameters)) {
    reducer->enable_local_norms();
  }
}

std::vector<LocalNorm> local_norms(const std::vector<at::Tensor>& parameters) {
  std::vector<LocalNorm> norms;
  for (const auto& reducer : reducers_of(parameters)) {
    for (auto& norm : reducer->local_norms()) {
      norms.push_back(std::move(norm));
    }
  }
  return norms;
}

} // namespace weft::ddp
