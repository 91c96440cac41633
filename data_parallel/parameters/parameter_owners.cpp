#include "data_parallel/parameters/parameter_owners.h"

#include <torch/nn/module.h>

#include "dtensor/scopes/module_call.h"

namespace weft::data_parallel {

std::string describe(const Owner& owner) {
  return (owner.module.empty() ? "the model" : owner.module) + " (" +
         owner.type + ")";
}

ParameterOwners::ParameterOwners(const torch::nn::Module& module) {
  const auto add = [&](const std::string& name,
                       const torch::nn::Module& owner) {
    const auto add_all = [&](const auto& named) {
      for (const auto& entry : named) {
        if (entry.value().defined()) {
          owners_[entry.value().unsafeGetTensorImpl()].push_back(
              {name, dtensor::module_type_name(owner), entry.key()});
        }
      }
    };
    add_all(owner.named_parameters(/*recurse=*/false));
    add_all(owner.named_buffers(/*recurse=*/false));
  };
  // named_modules() with include_self throws unless a shared_ptr owns the
  // module.
  add("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    add(item.key(), *item.value());
  }
}

const std::vector<Owner>& ParameterOwners::of(const at::Tensor& tensor) const {
  const auto found = owners_.find(tensor.unsafeGetTensorImpl());
  return found == owners_.end() ? nobody_ : found->second;
}

} // namespace weft::data_parallel
