#pragma once

#include <functional>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

/// `store`, where whoever waits looks every tenth of a second whether there is
/// still something to wait for.
/// `cancel_reason`: why there is not; empty if there is. A wait then throws a
/// CommError that says so.
c10::intrusive_ptr<c10d::Store> make_cancellable_store(
    c10::intrusive_ptr<c10d::Store> store,
    std::function<std::string()> cancel_reason);

} // namespace weft::mesh
