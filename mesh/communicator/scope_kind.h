#pragma once

#include <string_view>
#include <type_traits>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace weft::mesh {

/// Returns the slot of a kind of scope in libtorch's thread-local state, which
/// autograd's threads inherit. The slot is a number up to torch 2.14 and the
/// address of a name since then.
/// Lifetime: `name` must live as long as the process.
template <class Kind = c10::DebugInfoKind>
Kind scope_kind(const std::string_view* name, int number) {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(number);
  } else {
    return Kind(name);
  }
}

} // namespace weft::mesh
