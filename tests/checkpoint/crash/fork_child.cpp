#include "tests/checkpoint/crash/fork_child.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

namespace weft::test {
namespace {

void send_all(int channel, const std::string& text) {
  size_t sent = 0;
  while (sent < text.size()) {
    const auto n =
        ::send(channel, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) {
      return;
    }
    sent += static_cast<size_t>(n);
  }
}

[[noreturn]] void run_child(int channel, const ForkChild::Body& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // strace is no parent of ours.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  int code = 0;
  try {
    send_all(channel, body([channel] {
               send_all(channel, "r");
               char go = 0;
               (void)!::read(channel, &go, 1);
             }));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    code = 1;
  }
  ::_exit(code); // the parent's objects are not ours to end
}

} // namespace

ForkChild::ForkChild(const Body& body) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  pid_ = ::fork();
  if (pid_ < 0) {
    throw std::system_error(errno, std::generic_category(), "fork");
  }
  if (pid_ == 0) {
    ::close(ends[0]);
    run_child(ends[1], body);
  }
  ::close(ends[1]);
  channel_ = ends[0];
}

ForkChild::ForkChild(ForkChild&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      channel_(std::exchange(other.channel_, -1)),
      signal_(other.signal_),
      text_(std::move(other.text_)) {}

ForkChild::~ForkChild() {
  if (pid_ > 0 && !ended()) {
    kill();
    ::waitpid(pid_, nullptr, 0);
  }
  if (channel_ >= 0) {
    ::close(channel_);
  }
}

bool ForkChild::wait_ready(std::chrono::milliseconds limit) {
  pollfd ready{channel_, POLLIN, 0};
  if (::poll(&ready, 1, static_cast<int>(limit.count())) != 1) {
    return false;
  }
  char byte = 0;
  return ::read(channel_, &byte, 1) == 1 && byte == 'r';
}

void ForkChild::proceed() {
  send_all(channel_, "g");
}

void ForkChild::kill() {
  ::kill(pid_, SIGKILL);
}

std::optional<int> ForkChild::ended() {
  int status = 0;
  if (!signal_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    signal_ = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
  return signal_;
}

std::string ForkChild::report() {
  std::array<char, 4096> part{};
  ssize_t got = 0;
  while ((got = ::recv(channel_, part.data(), part.size(), MSG_DONTWAIT)) > 0) {
    text_.append(part.data(), static_cast<size_t>(got));
  }
  return text_;
}

} // namespace weft::test
