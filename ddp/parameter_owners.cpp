#include "ddp/parameter_owners.h"

#include <torch/nn/module.h>

namespace weft::ddp {

std::string type_name(const torch::nn::Module& module) {
  std::string name = module.name();
  const size_t colon = name.rfind(':');
  name.erase(0, colon == std::string::npos ? 0 : colon + 1);
  if (name.ends_with("Impl")) {
    name.erase(name.size() - 4);
  }
  return name;
}

std::string describe(const Owner& owner) {
  return (owner.module.empty() ? "the model" : owner.module) + " (" +
         owner.type + ")";
}

ParameterOwners::ParameterOwners(const torch::nn::Module& module) {
  for (const auto& item : module.named_modules()) {
    const auto& owner = *item.value();
    const auto add = [&](const auto& named) {
      for (const auto& entry : named) {
        if (entry.value().defined()) {
          owners_[entry.value().unsafeGetTensorImpl()].push_back(
              {item.key(), type_name(owner), entry.key()});
        }
      }
    };
    add(owner.named_parameters(/*recurse=*/false));
    add(owner.named_buffers(/*recurse=*/false));
  }
}

const std::vector<Owner>& ParameterOwners::of(const at::Tensor& tensor) const {
  const auto found = owners_.find(tensor.unsafeGetTensorImpl());
  return found == owners_.end() ? nobody_ : found->second;
}

} // namespace weft::ddp
