#include "mesh/collective_observer.h"

#include <string_view>
#include <type_traits>
#include <utility>

namespace weft::mesh {
namespace {

constexpr std::string_view kKindName = "WEFT_COLLECTIVE_OBSERVER";

// A number up to torch 2.14, the address of a name later.
template <class Kind>
Kind make_kind() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(0x58);
  } else {
    return Kind(&kKindName);
  }
}

c10::DebugInfoKind kind() {
  return make_kind<c10::DebugInfoKind>();
}

} // namespace

CollectiveObserver* collective_observer() {
  return static_cast<CollectiveObserver*>(
      c10::ThreadLocalDebugInfo::get(kind()));
}

ObserveCollectives::ObserveCollectives(
    std::shared_ptr<CollectiveObserver> observer)
    : guard_(kind(), std::move(observer)) {}

} // namespace weft::mesh
