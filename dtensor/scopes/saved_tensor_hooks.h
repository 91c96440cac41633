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

/// While one lives, what autograd saves for backward in this thread is handed
/// to `pack`, and backward gets it from `unpack`. The innermost one counts. A
/// tensor is kept only by what `pack` returns.
/// Throws: c10::Error if another autograd engine is installed.
/// Source: torch/autograd/graph.py, saved_tensors_hooks.
class SavedTensorsHooks {
 public:
  /// What is kept in place of a tensor.
  using Packed = std::shared_ptr<void>;
  /// Gets the tensor without its history, may not change it.
  using Pack = std::function<Packed(const at::Tensor& tensor)>;
  /// Called in backward, by whichever of autograd's threads runs the node, as
  /// often as the node asks.
  using Unpack = std::function<at::Tensor(const Packed& packed)>;

  SavedTensorsHooks(Pack pack, Unpack unpack);
  ~SavedTensorsHooks();
  SavedTensorsHooks(const SavedTensorsHooks&) = delete;
  SavedTensorsHooks& operator=(const SavedTensorsHooks&) = delete;

 private:
  std::shared_ptr<c10::DebugInfoBase> scope_;
  c10::DebugInfoGuard guard_;
};

/// Keeps a tensor that graphs would hold, if their saved tensors went nowhere
/// else, until the innermost SavedTensorsHooks of this thread ends; nothing if
/// there is none.
void keep_while_hooked(const at::Tensor& tensor);

} // namespace weft::dtensor
