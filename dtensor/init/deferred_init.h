#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dtensor/rules/rule.h"

namespace torch {
class Library;
namespace nn {
class Module;
} // namespace nn
} // namespace torch

namespace weft::dtensor {

/// While one lives, this thread's factory functions (empty, zeros, randn, ...)
/// return DTensors that remember how they are initialised and hold memory that
/// is reserved but not committed. A model built inside has parameters that no
/// rank has in full: tp::parallelize_module() says where they go and
/// materialize() computes each rank's part alone.
/// Source: libtorch's DispatchKey::DeferredInit; pytorch/torchdistx.
class DeferredInit {
 public:
  DeferredInit();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

/// One recorded step of an initialisation.
struct InitStep {
  enum class Kind { kFill, kUniform, kNormal, kScale, kShift, kFillSlice };
  Kind kind;
  /// fill: value. uniform: from, to. normal: mean, std. scale, shift: by a.
  double a = 0;
  double b = 0;
  /// fill slice: of select(dim, index).
  int64_t dim = 0;
  int64_t index = 0;
};

/// What a tensor made inside DeferredInit still has to become.
struct DeferredState {
  /// Run in order on the bytes of the reserved memory, which are the value if
  /// there are no steps.
  std::vector<InitStep> steps;
  /// The tensor is select(dim, index) of another that has random values to
  /// come, e.g. the padding row of an embedding: filling it is a step of that.
  std::shared_ptr<DeferredState> whole;
  int64_t dim = 0;
  int64_t index = 0;

  /// Shared with clones, which have the same random values to come: the name
  /// that keys them, once one of them is materialized. Null without clones.
  std::shared_ptr<std::string> stream;

  /// The first step leaves nothing of those bytes.
  bool overwrites() const;

  bool is_random() const;
};

bool is_deferred(const at::Tensor& tensor);
/// To be called before the local tensor of a user's DTensor is read: brings a
/// copied view up to date, see refresh(), as all ranks of its mesh do together.
/// Throws: c10::ValueError naming `op` and the tensor if it has not been
/// materialized.
void require_values(const at::Tensor& tensor, std::string_view op);

/// Gives every deferred parameter and buffer of `module` its values: this
/// rank's part under its placement, the same on every mesh for one seed.
/// Random streams are keyed by (seed, the tensor's name in the module). Values
/// are computed on `device`, and those that exist already are moved there; by
/// default on this rank's device in the world of the module's mesh, or the CPU
/// where nothing lies on a mesh.
/// Collective: none; every rank computes alone.
void materialize(
    torch::nn::Module& module,
    uint64_t seed,
    std::optional<c10::Device> device = std::nullopt);
/// The same for one tensor; `name` keys its random stream.
void materialize_tensor(
    const at::Tensor& tensor,
    uint64_t seed,
    const std::string& name,
    std::optional<c10::Device> device = std::nullopt);

/// Where a deferred or unplaced tensor is to lie; its values follow at once if
/// it has them, at materialize() otherwise.
/// Throws: c10::ValueError if the tensor lies on another mesh already.
void set_placements(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements);

/// Handles an op on deferred tensors: records it if it initialises one.
/// Returns whether it did all there is to do. Throws for an op that reads
/// values that do not exist yet.
bool run_deferred(const OpCall& call, torch::jit::Stack& stack);

/// The kernel behind DeferredInit.
void register_deferred_init(torch::Library& library);

} // namespace weft::dtensor
