#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::ddp {

/// A module that registered a parameter or buffer.
struct Owner {
  /// The module's fully qualified name; "" for the model itself.
  std::string module;
  /// Its type without namespaces, e.g. "Linear".
  std::string type;
  /// The name under which it registered the tensor, e.g. "weight".
  std::string name;
};

/// "layers.0.wq (Linear)"; the model itself is "the model (Llama)".
std::string describe(const Owner& owner);

/// Which modules have a tensor: several if it is tied.
class ParameterOwners {
 public:
  /// Lifetime: tensors are known by address, so the module must keep those that
  /// it has.
  explicit ParameterOwners(const torch::nn::Module& module);

  /// In the order of registration; empty for a tensor of no module.
  const std::vector<Owner>& of(const at::Tensor& tensor) const;

 private:
  std::unordered_map<const void*, std::vector<Owner>> owners_;
  std::vector<Owner> nobody_;
};

} // namespace weft::ddp
