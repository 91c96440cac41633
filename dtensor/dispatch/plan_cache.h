#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include "dtensor/dispatch/op_arguments.h"
#include "dtensor/dispatch/op_plan.h"

namespace weft::dtensor {

class DTensorImpl;
class ParameterHooks;

/// The key of a plan. See Note [Plan cache].
using PlanKey = c10::SmallVector<int64_t, 96>;

/// Reads a call's key and the required facts about its tensors without changing
/// a reference count.
class CallReader {
 public:
  CallReader(const c10::OperatorHandle& op, Arguments arguments);

  const PlanKey& key() const { return key_; }
  bool cachable() const { return cachable_; }
  bool has_deferred() const { return has_deferred_; }
  bool has_copied_view() const { return has_copied_view_; }
  /// True if a plain tensor with at least one dim is among the arguments.
  bool has_plain() const { return has_plain_; }
  /// The hooks of the last argument that has some, or null. Valid until the
  /// arguments are replaced.
  const std::shared_ptr<ParameterHooks>* parameter_hooks() const {
    return parameter_hooks_;
  }
  /// The first DTensor on a mesh with at least one dim, or null.
  const DTensorSpec* common() const { return common_; }

 private:
  enum Tag : int64_t {
    kNone,
    kTensor,
    kPlain,
    kInt,
    kDouble,
    kBool,
    kList,
    kDevice,
    kText
  };

  /// Throws if a tensor changed its local tensor while the others were read.
  void check_hooked() const;
  void read(const c10::IValue& value);
  void read_list(c10::ArrayRef<c10::IValue> list);
  void read_tensor(const at::Tensor& tensor);

  PlanKey key_;
  bool cachable_ = true;
  bool has_deferred_ = false;
  bool has_copied_view_ = false;
  bool has_plain_ = false;
  const std::shared_ptr<ParameterHooks>* parameter_hooks_ = nullptr;
  c10::SmallVector<std::pair<const DTensorImpl*, const void*>, 2> hooked_;
  const DTensorSpec* common_ = nullptr;
};

/// Returns the plan of the call that `reader` has read, from the mesh's cache
/// or newly made. `arguments` are those of the call.
std::shared_ptr<const OpPlan> find_plan(
    const CallReader& reader,
    const c10::OperatorHandle& op,
    Arguments arguments);

} // namespace weft::dtensor
