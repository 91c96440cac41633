#include "launcher/process/master_socket.h"

#include <cstring>
#include <fstream>

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/unique_fd.h"
#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

constexpr int kNotAllowed = 77;

/// A network of this process alone, where four ports are free.
bool enter_small_network() {
  if (unshare(CLONE_NEWNET) != 0) {
    return false;
  }
  const base::UniqueFd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  if (ioctl(any.get(), SIOCSIFFLAGS, &loopback) != 0) {
    return false;
  }
  std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
  range << "40000 40003\n";
  range.close();
  return !range.fail();
}

/// Whether free ports are others than one whose run is ending: its launcher
/// claims the port, and rank 0 is gone.
bool gets_other_ports() {
  MasterSocket ending("127.0.0.1", 0);
  ending.close();
  for (int i = 0; i < 40; ++i) {
    try {
      if (MasterSocket("127.0.0.1", 0).port() == ending.port()) {
        return false;
      }
    } catch (const LaunchError&) {
      return false;
    }
  }
  return true;
}

TEST(MasterSocket, AFreePortIsNotOneOfARunThatIsEnding) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!enter_small_network()) {
      _exit(kNotAllowed);
    }
    _exit(gets_other_ports() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotAllowed) {
    GTEST_SKIP() << "a network namespace may not be made";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

} // namespace
} // namespace weft::launcher
