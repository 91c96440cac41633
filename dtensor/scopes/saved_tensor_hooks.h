#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace weft::dtensor {

// Note [Saved tensors]
// ~~~~~~~~~~~~~~~~~~~~
// libtorch asks its autograd engine what to do with each tensor that a node
// saves for backward; the hooks themselves exist in Python only. So this
// library installs an engine of its own when it is loaded, which is libtorch's
// but for that answer. A process in which another one (Python's) is installed
// keeps it, and has no hooks.

/// Scope in which tensors that autograd saves for backward in this thread are
/// passed to `pack`, and backward gets them from `unpack`. The innermost scope
/// applies. Autograd keeps only the result of `pack`, not the tensor.
/// Throws: c10::Error if another autograd engine is installed.
/// Source: torch/autograd/graph.py, saved_tensors_hooks.
class SavedTensorsHooks {
 public:
  /// The object that is stored in place of a tensor.
  using Packed = std::shared_ptr<void>;
  /// Receives the tensor without its history and must not change it.
  using Pack = std::function<Packed(const at::Tensor& tensor)>;
  /// Called in backward, by the autograd thread that runs the node, each time
  /// the node reads the saved tensor.
  using Unpack = std::function<at::Tensor(const Packed& packed)>;

  SavedTensorsHooks(Pack pack, Unpack unpack);
  ~SavedTensorsHooks();
  SavedTensorsHooks(const SavedTensorsHooks&) = delete;
  SavedTensorsHooks& operator=(const SavedTensorsHooks&) = delete;

 private:
  std::shared_ptr<c10::DebugInfoBase> scope_;
  c10::DebugInfoGuard guard_;
};

/// Stores a tensor until the innermost SavedTensorsHooks of this thread ends,
/// as graphs would if their saved tensors were not packed. Does nothing without
/// a scope.
void keep_while_hooked(const at::Tensor& tensor);

} // namespace weft::dtensor
