#include "mesh/bootstrap/rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

#include <c10/util/Logging.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/loopback.h"
#include "base/numeric_address.h"
#include "base/unique_fd.h"
#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/sockets.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"

namespace weft::mesh {
namespace {

constexpr const char* kAddressKey = "outside_address";

/// The variable that holds this host's address for other hosts. weftrun sets it
/// in runs over several hosts, where MASTER_ADDR is the address of the launcher
/// on this host.
constexpr const char* kBindAddress = "WEFT_BIND_ADDR";

/// Returns the bound socket that rank 0 inherits from weftrun, or nothing.
std::optional<int> inherited_listener(uint16_t port) {
  const auto fd =
      env::get_int("WEFT_MASTER_FD", 0, std::numeric_limits<int32_t>::max());
  if (!fd) {
    return std::nullopt;
  }
  env::unset("WEFT_MASTER_FD");
  const uint16_t bound = port_of(static_cast<int>(*fd));
  if (bound != port) {
    throw_error<UsageError>(detail::concat(
        "[environment] WEFT_MASTER_FD=",
        *fd,
        " is not a socket bound to MASTER_PORT=",
        port,
        ". It is set by weftrun alone."));
  }
  return static_cast<int>(*fd);
}

int open_listener(const JobEnvironment& job) {
  try {
    return listen_at(
        is_loopback(job.master_address) ? loopback_number(job.master_address)
                                        : "",
        job.master_port);
  } catch (const CommError& cause) {
    throw_error<CommError>(detail::concat(
        cause.what_without_backtrace(),
        job.port_origin.empty() ? ""
                                : ". The port was made from " + job.port_origin,
        ". Set MASTER_PORT, the same on all ranks, to a free port of rank 0's "
        "host. (rank ",
        job.rank,
        "/",
        job.world_size,
        ")"));
  }
}

/// Listens on the inherited socket. weftrun only binds it to keep the port
/// free, so that a program can also listen at MASTER_PORT with its own socket.
void start_listening(int fd, const JobEnvironment& job) {
  if (listen(fd, SOMAXCONN) != 0) {
    throw_error<CommError>(detail::concat(
        "[rendezvous] cannot listen at MASTER_PORT=",
        job.master_port,
        ": ",
        std::strerror(errno),
        ". Another program took the port during the start. Choose another "
        "MASTER_PORT. (rank ",
        job.rank,
        "/",
        job.world_size,
        ")"));
  }
}

/// Returns true if a process listens at `address`, a numeric address of this
/// host.
bool is_served(const std::string& address, uint16_t port) {
  const auto target = base::numeric_address(address, port);
  if (!target) {
    return true; // c10d reports what is wrong with it.
  }
  const base::UniqueFd fd(
      socket(target->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) {
    throw_error<CommError>(
        detail::concat("cannot create a socket: ", std::strerror(errno)));
  }
  return connect(fd.get(), target->get(), target->size) == 0;
}

/// Blocks until rank 0 serves the store. c10d would retry only once a second.
void wait_for_server(
    const std::string& address,
    uint16_t port,
    std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout;
  while (!is_served(address, port)) {
    if (Clock::now() >= deadline) {
      throw_error<TimeoutError>("timed out: rank 0 does not serve the store");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

c10d::TCPStoreOptions store_options(
    const JobEnvironment& job,
    std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = job.master_port;
  options.timeout = timeout;
  options.waitWorkers = false;
  options.isServer =
      job.rank == 0 && !env::is_true("TORCHELASTIC_USE_AGENT_STORE");
  if (options.isServer) {
    options.masterListenFd = inherited_listener(job.master_port);
    if (options.masterListenFd) {
      start_listening(*options.masterListenFd, job);
    } else {
      options.masterListenFd = open_listener(job);
    }
  }
  return options;
}

/// Connects to the store on another thread, because c10d's client waits without
/// a limit for the first response of the process that listens at the port. If
/// none arrives, the thread and its connection are left behind.
c10::intrusive_ptr<c10d::Store> open_store(
    const std::string& address,
    const c10d::TCPStoreOptions& options) {
  // c10d's own timeout must expire first.
  constexpr std::chrono::milliseconds kSlack{500};
  using Result = c10::intrusive_ptr<c10d::Store>;
  std::packaged_task<Result()> task([address, options]() -> Result {
    return c10::make_intrusive<c10d::TCPStore>(address, options);
  });
  auto store = task.get_future();
  std::thread(std::move(task)).detach();
  if (store.wait_for(options.timeout + kSlack) != std::future_status::ready) {
    throw_error<TimeoutError>(
        "timed out: the process listening on MASTER_PORT does not answer like "
        "rank 0's store; does another program use the port?");
  }
  return store.get();
}

} // namespace

void drop_inherited_listener(uint16_t port) {
  if (const auto fd = inherited_listener(port)) {
    close(*fd);
  }
}

namespace {

// Lets c10d log errors only, unless PyTorch's TORCH_CPP_LOG_LEVEL is set. At
// the end of every run one rank leaves before the others and takes the store
// with it, and c10d would log a warning and a backtrace for each thread that
// waits in the store. Real failures are thrown as well.
void keep_c10d_quiet() {
  constexpr int kErrors = 2; // 0 is info, 1 is warnings.
  if (!env::get("TORCH_CPP_LOG_LEVEL")) {
    FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, kErrors);
  }
}

} // namespace

c10::intrusive_ptr<c10d::Store> connect_store(
    const JobEnvironment& job,
    std::chrono::milliseconds timeout) {
  keep_c10d_quiet();
  if (is_loopback(job.master_address)) {
    // Checked first, because c10d would retry until the timeout, and every
    // attempt would fail.
    const auto fault =
        base::loopback_fault(loopback_number(job.master_address));
    if (!fault.empty()) {
      throw_error<UsageError>(detail::concat(
          "[rendezvous] ",
          fault,
          ". (rank ",
          job.rank,
          "/",
          job.world_size,
          ")"));
    }
  }
  const auto options = store_options(job, timeout);
  std::string prefix = "weft/";
  if (!job.job_key.empty()) {
    prefix.append(job.job_key).append("/");
  }
  prefix.append(env::get("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  const bool is_local = is_loopback(job.master_address);
  const std::string address =
      is_local ? loopback_number(job.master_address) : job.master_address;
  try {
    if (is_local && !options.isServer) {
      wait_for_server(address, job.master_port, timeout);
    }
    return c10::make_intrusive<c10d::PrefixStore>(
        prefix, open_store(address, options));
  } catch (const std::exception& cause) {
    rethrow_if_out_of_memory(cause);
    if (!is_loopback(job.master_address)) {
      // Called after the failure, because a name may become known late. Throws
      // an error about the name if it is still unknown.
      local_address_towards(job.master_address);
    }
    const auto failure = failure_reason(cause, timeout);
    throw_comm_error(
        detail::concat(
            "[rendezvous] ",
            failure.reason,
            ". (rank ",
            job.rank,
            "/",
            job.world_size,
            ", store ",
            job.master_address,
            ":",
            job.master_port,
            ")"),
        failure.is_timeout);
  }
}

// Note [A host's own name]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// Debian's /etc/hosts gives a host's own name a loopback address (127.0.1.1).
// If MASTER_ADDR is that name, the route to it ends at loopback on rank 0's
// host, and ranks of other hosts cannot connect there. On the other hosts the
// local address of the route is a real one. One rank of these hosts stores its
// address, and the route to that address gives rank 0's host its own real
// address.

void publish_address(c10d::Store& store, const JobEnvironment& job) {
  if (is_loopback(job.master_address) || env::get(kBindAddress)) {
    return;
  }
  const auto own = local_address_towards(job.master_address);
  if (!is_loopback(own)) {
    store.set(kAddressKey, own);
  }
}

std::string listening_address(c10d::Store& store, const JobEnvironment& job) {
  if (auto given = env::get(kBindAddress)) {
    return *std::move(given);
  }
  if (is_loopback(job.master_address)) {
    return loopback_number(job.master_address);
  }
  auto own = local_address_towards(job.master_address);
  return is_loopback(own) && store.check({kAddressKey})
             ? local_address_towards(store.get_to_str(kAddressKey))
             : own;
}

} // namespace weft::mesh
