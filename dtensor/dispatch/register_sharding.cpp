#include "dtensor/dispatch/register_sharding.h"

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/registration.h"

namespace weft::dtensor {
namespace {

// The registered kernels. They are kept until the process exits, because a
// torch::Library unregisters its kernels when it is destroyed.
struct Registrations {
  std::mutex mutex;
  std::deque<torch::Library> libraries;
};

Registrations& registrations() {
  static const auto all = std::make_unique<Registrations>();
  return *all;
}

std::vector<c10::OperatorHandle> find_ops(const std::string& text) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto colons = text.find("::");
  TORCH_CHECK_VALUE(
      colons != std::string::npos && colons != 0,
      "[register_sharding] \"",
      text,
      "\" has no namespace. Write e.g. \"my_ops::scale\".");
  std::vector<c10::OperatorHandle> ops;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name == text || c10::toString(name) == text) {
      const auto op = dispatcher.findOp(name);
      if (op && op->hasSchema()) {
        ops.push_back(*op);
      }
    }
  }
  TORCH_CHECK_VALUE(
      !ops.empty(),
      "[register_sharding] no op \"",
      text,
      "\" is defined. Define it first, with TORCH_LIBRARY or torch::Library.");
  return ops;
}

bool writes_arguments(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (argument.alias_info() && argument.alias_info()->isWrite()) {
      return true;
    }
  }
  return false;
}

void check_op(const c10::OperatorHandle& op, const Rule& rule) {
  using c10::DispatchKey;
  const auto name = c10::toString(op.operator_name());
  TORCH_CHECK_VALUE(
      !find_rule(op),
      "[register_sharding] \"",
      name,
      "\" already has a sharding rule.");
  const bool composed =
      op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
      !op.hasKernelForDispatchKey(DispatchKey::CPU) &&
      !op.hasKernelForDispatchKey(DispatchKey::CUDA);
  TORCH_CHECK_VALUE(
      !composed,
      "[register_sharding] \"",
      name,
      "\" is decomposed into other ops with rules, so it runs on DTensors "
      "already. To run it as one op, register it for a device (m.impl(name, "
      "DispatchKey::CPU, kernel)), with an autograd kernel of its own.");
  TORCH_CHECK_VALUE(
      name.starts_with("aten::") ||
          !op.hasKernelForDispatchKey(DispatchKey::PrivateUse3),
      "[register_sharding] \"",
      name,
      "\" already has a kernel for DTensors (PrivateUse3).");
  const bool has_meta =
      op.hasKernelForDispatchKey(DispatchKey::Meta) ||
      op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(
          DispatchKey::CompositeExplicitAutogradNonFunctional);
  TORCH_CHECK_VALUE(
      !rule.strategies || rule.infer || has_meta ||
          writes_arguments(op.schema()),
      "[register_sharding] cannot infer the output sizes of \"",
      name,
      "\" from its inputs. Set Rule::infer, or register a Meta kernel first.");
}

} // namespace

void register_sharding(const std::string& op, const Rule& rule) {
  ensure_dispatch_registered();
  const auto ops = find_ops(op);
  for (const auto& handle : ops) {
    check_op(handle, rule);
  }
  const auto space = op.substr(0, op.find("::"));
  auto& all = registrations();
  const std::lock_guard lock(all.mutex);
  TORCH_CHECK_VALUE(
      add_registered_rule(op, rule),
      "[register_sharding] \"",
      op,
      "\" already has a sharding rule.");
  torch::Library library(
      torch::Library::IMPL,
      space,
      c10::DispatchKey::PrivateUse3,
      __FILE__,
      __LINE__);
  for (const auto& handle : ops) {
    if (!handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse3)) {
      library.impl(
          c10::toString(handle.operator_name()).c_str(),
          torch::CppFunction::makeFromBoxedFunction<&dispatch_boxed>());
    }
  }
  all.libraries.push_back(std::move(library));
}

} // namespace weft::dtensor
