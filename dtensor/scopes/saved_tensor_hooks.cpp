#include "dtensor/scopes/saved_tensor_hooks.h"

#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "mesh/communicator/scope_kind.h"

namespace weft::dtensor {
namespace {

using torch::autograd::Engine;

constexpr std::string_view kSavedTensorsKind = "WEFT_SAVED_TENSORS_HOOKS";

struct HookPair : c10::DebugInfoBase {
  SavedTensorsHooks::Pack pack;
  SavedTensorsHooks::Unpack unpack;
  /// The tensors of keep_while_hooked(), released when the scope ends.
  std::vector<at::Tensor> kept;
};

c10::DebugInfoKind saved_tensors_kind() {
  return mesh::scope_kind(&kSavedTensorsKind, 0x59);
}

HookPair* current_hooks() {
  return static_cast<HookPair*>(
      c10::ThreadLocalDebugInfo::get(saved_tensors_kind()));
}

class PackedVariable final : public torch::autograd::SavedVariableHooks {
 public:
  explicit PackedVariable(const HookPair& hooks)
      : pack_(hooks.pack), unpack_(hooks.unpack) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    // The history is removed, because a node that saves its own output would
    // hold itself through it.
    packed_ = pack_(tensor.requires_grad() ? tensor.detach() : tensor);
  }
  at::Tensor call_unpack_hook() override { return unpack_(packed_); }

 private:
  SavedTensorsHooks::Pack pack_;
  SavedTensorsHooks::Unpack unpack_;
  SavedTensorsHooks::Packed packed_;
};

class HookedEngine final : public Engine {
 public:
  HookedEngine() = default;
  HookedEngine(const HookedEngine&) = delete;
  HookedEngine& operator=(const HookedEngine&) = delete;
  ~HookedEngine() override { stop(); }

  std::unique_ptr<torch::autograd::SavedVariableHooks>
  get_default_saved_variable_hooks() override {
    const auto* hooks = current_hooks();
    return hooks ? std::make_unique<PackedVariable>(*hooks) : nullptr;
  }
};

Engine& hooked_engine() {
  // libtorch requires an engine that exists until the process exits.
  static const auto engine = std::make_unique<HookedEngine>();
  return *engine;
}

// True if this library's engine was installed. It is installed when the library
// is loaded, before the first backward pass, because an engine starts its
// threads only once.
const bool kInstalled = [] {
  const Engine& engine = Engine::get_default_engine();
  const bool is_libtorchs = typeid(engine) == typeid(Engine);
  if (is_libtorchs) {
    torch::autograd::set_default_engine_stub(&hooked_engine);
  }
  return is_libtorchs;
}();

std::shared_ptr<HookPair> make_pair(
    SavedTensorsHooks::Pack pack,
    SavedTensorsHooks::Unpack unpack) {
  TORCH_CHECK(
      kInstalled && &Engine::get_default_engine() == &hooked_engine(),
      "[saved_tensors_hooks] this process has another autograd engine than "
      "Weft's (Python's?), whose saved tensors Weft cannot hook. Run without "
      "it.");
  auto hooks = std::make_shared<HookPair>();
  hooks->pack = std::move(pack);
  hooks->unpack = std::move(unpack);
  return hooks;
}

} // namespace

SavedTensorsHooks::SavedTensorsHooks(Pack pack, Unpack unpack)
    : scope_(make_pair(std::move(pack), std::move(unpack))),
      guard_(saved_tensors_kind(), scope_) {}

SavedTensorsHooks::~SavedTensorsHooks() {
  // A captured ThreadLocalState may hold the scope longer, so the tensors are
  // released here.
  static_cast<HookPair&>(*scope_).kept.clear();
}

void keep_while_hooked(const at::Tensor& tensor) {
  if (auto* hooks = current_hooks()) {
    hooks->kept.push_back(tensor);
  }
}

} // namespace weft::dtensor
