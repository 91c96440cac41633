#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::data_parallel {

/// A module that registered a parameter or buffer.
struct Owner {
  /// The module's fully qualified name. "" is the model itself.
  std::string module;
  /// The module's type without namespaces, e.g. "Linear".
  std::string type;
  /// The name of the tensor in the module, e.g. "weight".
  std::string name;
};

/// Returns "layers.0.wq (Linear)", or "the model (Llama)" for the model itself.
std::string describe(const Owner& owner);

/// Maps tensors to the modules that registered them. A tied tensor has several.
class ParameterOwners {
 public:
  /// Lifetime: tensors are identified by address, so the module must keep its
  /// tensors.
  explicit ParameterOwners(const torch::nn::Module& module);

  /// Returns the owners in registration order. Empty for a tensor of no module.
  const std::vector<Owner>& of(const at::Tensor& tensor) const;

 private:
  std::unordered_map<const void*, std::vector<Owner>> owners_;
  std::vector<Owner> nobody_;
};

} // namespace weft::data_parallel
