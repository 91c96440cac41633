#include "dtensor/scopes/scopes.h"

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "mesh/communicator/scope_kind.h"

namespace weft::dtensor {
namespace {

// Note [Scopes]
// ~~~~~~~~~~~~~
// A scope is an entry of c10::ThreadLocalDebugInfo, libtorch's own stack of
// thread-local state, which autograd's threads inherit from the thread that
// calls backward(). An entry is immutable, except for the set of its warnings.
// It has the settings of its scope and of the outer ones, so a lookup reads
// only the innermost entry.
struct ScopeState : c10::DebugInfoBase {
  bool implicit_replication = false;
  ExplicitRedistributionOptions redistribution{.enable = false};
  bool watch_moves = false;
  std::mutex mutex;
  std::set<std::string, std::less<>> warned;
};

constexpr std::string_view kKindName = "WEFT_DTENSOR_SCOPES";

c10::DebugInfoKind kind() {
  return mesh::scope_kind(&kKindName, 0x57);
}

ScopeState* current() {
  return static_cast<ScopeState*>(c10::ThreadLocalDebugInfo::get(kind()));
}

template <class Change>
std::shared_ptr<ScopeState> changed(const Change& change) {
  auto state = std::make_shared<ScopeState>();
  if (const auto* outer = current()) {
    state->implicit_replication = outer->implicit_replication;
    state->redistribution = outer->redistribution;
    state->watch_moves = outer->watch_moves;
  }
  change(*state);
  return state;
}

} // namespace

ImplicitReplication::ImplicitReplication()
    : guard_(kind(), changed([](ScopeState& state) {
               state.implicit_replication = true;
             })) {}

ExplicitRedistribution::ExplicitRedistribution(
    const ExplicitRedistributionOptions& options)
    : guard_(kind(), changed([&](ScopeState& state) {
               state.redistribution = options;
             })) {}

bool implicit_replication_enabled() {
  const auto* state = current();
  return state && state->implicit_replication;
}

namespace detail {

const ExplicitRedistributionOptions* explicit_redistribution() {
  const auto* state = current();
  return state && state->redistribution.enable ? &state->redistribution
                                               : nullptr;
}

bool is_first_warning(std::string_view op) {
  auto* state = current();
  const std::lock_guard lock(state->mutex);
  return state->warned.emplace(op).second;
}

bool moves_are_watched() {
  const auto* state = current();
  return state && (state->redistribution.enable || state->watch_moves);
}

RedistributeObserverGuard::RedistributeObserverGuard()
    : guard_(kind(), changed([](ScopeState& state) {
               state.watch_moves = true;
             })) {}

} // namespace detail
} // namespace weft::dtensor
