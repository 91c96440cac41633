#include "launcher/process/signals.h"

#include <algorithm>

#include <sys/signalfd.h>

#include <fmt/format.h>

#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

int parse_signal(std::string_view name) {
  const auto bare = name.starts_with("SIG") ? name.substr(3) : name;
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    const char* candidate = sigabbrev_np(signal);
    if (candidate != nullptr && bare == candidate) {
      return signal;
    }
  }
  return 0;
}

} // namespace

std::vector<int> parse_signals(std::string_view text) {
  std::vector<int> signals;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto name = text.substr(begin, end - begin);
    const int signal = parse_signal(name);
    if (signal == 0) {
      throw LaunchError(fmt::format(
          "--signals-to-handle {}: '{}' is not a signal such as SIGTERM.",
          text,
          name));
    }
    if (signal == SIGKILL || signal == SIGSTOP || signal == SIGCHLD) {
      throw LaunchError(fmt::format(
          "--signals-to-handle {}: {} cannot be forwarded.", text, name));
    }
    signals.push_back(signal);
    begin = end + 1;
  }
  return signals;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name)
                         : fmt::format("signal {}", signal);
}

SignalQueue::SignalQueue(const std::vector<int>& handled) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGCHLD);
  for (const int signal : handled) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (signal == SIGHUP && action.sa_handler == SIG_IGN) {
      continue;
    }
    sigaddset(&mask, signal);
    handled_.push_back(signal);
  }
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    if (std::ranges::count(handled, signal) == 0) {
      sigaddset(&mask, signal);
      forwarded_signals_.push_back(signal);
    }
  }
  sigprocmask(SIG_BLOCK, &mask, &old_mask_);
  // A shell starts background jobs with SIGINT ignored. If SIGCHLD were
  // ignored, the kernel would reap the workers.
  for (const int signal : handled_) {
    ::signal(signal, SIG_DFL);
  }
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  fd_ = base::UniqueFd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) {
    throw_errno("signalfd");
  }
}

SignalQueue::~SignalQueue() {
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

std::vector<int> SignalQueue::take() {
  std::vector<int> signals;
  signalfd_siginfo info;
  while (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    signals.push_back(static_cast<int>(info.ssi_signo));
  }
  return signals;
}

bool SignalQueue::is_forwarded_only(int signal) const {
  return std::ranges::count(forwarded_signals_, signal) > 0;
}

bool SignalQueue::is_termination_request(int signal) const {
  return signal != SIGCHLD && !is_forwarded_only(signal);
}

void SignalQueue::restore() const {
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  sigset_t mask = old_mask_;
  for (const auto* signals : {&handled_, &forwarded_signals_}) {
    for (const int signal : *signals) {
      sigdelset(&mask, signal);
    }
  }
  sigprocmask(SIG_SETMASK, &mask, nullptr);
}

} // namespace weft::launcher
