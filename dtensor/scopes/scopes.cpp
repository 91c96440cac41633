#include "dtensor/scopes/scopes.h"

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include <c10/util/Exception.h>

#include "dtensor/redistribute/redistribute_plan.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/communicator/scope_kind.h"

namespace weft::dtensor {
namespace {

// Note [Scopes]
// ~~~~~~~~~~~~~
// A scope is an entry of c10::ThreadLocalDebugInfo: libtorch's own stack of
// thread-local state, which autograd's threads inherit from the thread that
// calls backward(). An entry is immutable (but for what it has warned of) and
// holds all that its scope and the outer ones say, so a look finds the first.
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

double redistributed_bytes(
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::IntArrayRef global_sizes,
    int64_t element_size) {
  const auto plan = find_plan(
      fitted(from, global_sizes),
      fitted(to, global_sizes),
      global_sizes,
      element_size);
  double total = 0;
  for (const auto& step : plan->steps) {
    double ranks = 1;
    for (const int64_t i : step.mesh_dims) {
      ranks *= static_cast<double>(from.mesh().size(i));
    }
    total += received_bytes(step.kind, ranks, step.bytes);
  }
  return total;
}

namespace detail {

bool explicit_redistribution_enabled() {
  const auto* state = current();
  return state && state->redistribution.enable;
}

bool moves_are_watched() {
  const auto* state = current();
  return state && (state->redistribution.enable || state->watch_moves);
}

WatchMoves::WatchMoves()
    : guard_(kind(), changed([](ScopeState& state) {
               state.watch_moves = true;
             })) {}

void refuse_implicit_redistribution(
    std::string_view op,
    const at::Tensor& tensor,
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::function_ref<std::string()> operands) {
  auto* state = current();
  if (from == to) {
    return;
  }
  const auto bytes = redistributed_bytes(
      from, to, tensor.sizes(), static_cast<int64_t>(tensor.element_size()));
  if (bytes == 0 && !state->redistribution.strict) {
    return;
  }
  const auto message = c10::str(
      "[",
      op,
      "] would redistribute ",
      describe(tensor),
      " from ",
      to_string(from.placements()),
      " to ",
      to_string(to.placements()),
      ": ",
      static_cast<int64_t>(bytes),
      " bytes to each rank, which an ExplicitRedistribution scope forbids; "
      "operands ",
      operands(),
      ". Call redistribute(x, ",
      to_string(to.placements()),
      ") before it, or end the scope. (",
      from.mesh().describe_rank(),
      ")");
  if (state->redistribution.mode == ExplicitRedistribution::Mode::kRaise) {
    TORCH_CHECK_VALUE(false, message);
  }
  const std::lock_guard lock(state->mutex);
  if (state->warned.emplace(op).second) {
    TORCH_WARN(message);
  }
}

} // namespace detail
} // namespace weft::dtensor
