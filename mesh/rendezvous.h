#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

/// Where torchrun's or weftrun's environment says this rank is.
struct LaunchInfo {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  /// Empty if no launcher set an environment.
  std::string master_address;
  uint16_t master_port = 0;
};

/// Throws: UsageError naming the variable that is missing or malformed.
LaunchInfo read_launch_info();

bool is_loopback(std::string_view address);

/// This host's address on the way to `address`, e.g. "10.0.0.3". Sends nothing.
/// Throws: CommError if there is no way.
std::string local_address_towards(const std::string& address);

/// The job's store, its keys apart from those of earlier starts. Rank 0 serves
/// it, on loopback alone if MASTER_ADDR is a loopback address, unless the
/// launcher's agent does.
/// Collective: all ranks; blocks until rank 0 serves.
/// Throws: CommError if it does not in time.
c10::intrusive_ptr<c10d::Store> connect_store(
    const LaunchInfo& launch,
    std::chrono::milliseconds timeout);

/// Closes the listening socket that weftrun passed on, where no store is
/// served.
void drop_inherited_listener(uint16_t port);

} // namespace weft::mesh
