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
#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/sockets.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"

namespace weft::mesh {
namespace {

constexpr const char* kAddressKey = "outside_address";

/// Set by weftrun for runs over several hosts, where MASTER_ADDR is the
/// launcher on this host: this host's address for the others.
constexpr const char* kBindAddress = "WEFT_BIND_ADDR";

/// The socket that weftrun passes on, bound, or none.
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

/// The socket that rank 0 serves the store on.
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

/// Until now the socket only kept the port: a program that wants to listen at
/// MASTER_PORT by a socket of its own can.
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

/// Whether somebody listens at a numeric address of this host.
bool is_served(const std::string& address, uint16_t port) {
  const auto target = base::numeric_address(address, port);
  if (!target) {
    return true; // c10d shall say what is wrong with it
  }
  const int fd =
      socket(target->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = connect(fd, target->get(), target->size) == 0;
  close(fd);
  return connected;
}

/// Waits until rank 0 serves. c10d would ask only once a second.
void wait_for_server(
    const std::string& address,
    uint16_t port,
    std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout;
  while (!is_served(address, port)) {
    if (Clock::now() >= deadline) {
      throw std::runtime_error("timed out: rank 0 does not serve the store");
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

/// c10d's client waits without a limit for the first answer of the one that
/// listens at the port. A thread of its own does that here; if none comes, it
/// is left behind with its connection.
c10::intrusive_ptr<c10d::Store> open_store(
    const std::string& address,
    const c10d::TCPStoreOptions& options) {
  constexpr std::chrono::milliseconds kSlack{500}; // its own limit comes first
  using Result = c10::intrusive_ptr<c10d::Store>;
  std::packaged_task<Result()> task([address, options]() -> Result {
    return c10::make_intrusive<c10d::TCPStore>(address, options);
  });
  auto store = task.get_future();
  std::thread(std::move(task)).detach();
  if (store.wait_for(options.timeout + kSlack) != std::future_status::ready) {
    throw std::runtime_error(
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

// Every run ends with one rank leaving before the others, and it takes the
// store along: c10d has a warning and a backtrace for each thread that hears in
// it. What fails is thrown besides. The variable is PyTorch's.
void keep_c10d_quiet() {
  constexpr int kErrors = 2; // 0: info, 1: warnings
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
    // A retry would fail like the first attempt until the timeout.
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
      // Names may turn up late, so this is asked last: it throws if the name is
      // still unknown, and reports it.
      local_address_towards(job.master_address);
    }
    throw_error<CommError>(detail::concat(
        "[rendezvous] ",
        failure_reason(cause, timeout),
        ". (rank ",
        job.rank,
        "/",
        job.world_size,
        ", store ",
        job.master_address,
        ":",
        job.master_port,
        ")"));
  }
}

// Note [A host's own name]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// Debian's /etc/hosts gives a host's own name a loopback address (127.0.1.1).
// So on rank 0's host the way to MASTER_ADDR, that name, ends at loopback,
// where ranks of other hosts would look without result. The ranks of the other
// hosts see a real address on that way; one of theirs is left in the store, and
// the way to it shows rank 0's host its own real address.

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
