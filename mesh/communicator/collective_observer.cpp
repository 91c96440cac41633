#include "mesh/communicator/collective_observer.h"

#include <string_view>
#include <utility>

#include "mesh/communicator/scope_kind.h"

namespace weft::mesh {
namespace {

constexpr std::string_view kKindName = "WEFT_COLLECTIVE_OBSERVER";

c10::DebugInfoKind kind() {
  return scope_kind(&kKindName, 0x58);
}

} // namespace

CollectiveObserver* collective_observer() {
  return static_cast<CollectiveObserver*>(
      c10::ThreadLocalDebugInfo::get(kind()));
}

CollectiveObserverGuard::CollectiveObserverGuard(
    std::shared_ptr<CollectiveObserver> observer)
    : guard_(kind(), std::move(observer)) {}

} // namespace weft::mesh
