#include "mesh/crash/stacks.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "base/stacks/symbols.h"
#include "base/stacks/thread_capture.h"
#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/job_rank.h"
#include "mesh/crash/crash_handler.h"

namespace weft::mesh {
namespace {

constexpr std::chrono::milliseconds kCaptureLimit(500);
constexpr size_t kShownFrames = 48;
constexpr size_t kReportBytes = size_t{256} * 1024;

struct StackGroup {
  std::vector<base::CapturedThread> threads;
  std::string lines;
  bool is_in_weft = false;
};

/// Removes the frames of the SIGUSR2 handler: a thread that received the signal
/// may still be in it. The handler returns through one frame of the C library.
void leave_out_handler(base::Symbols& symbols, std::vector<void*>& frames) {
  for (size_t i = 0; i + 1 < std::min<size_t>(frames.size(), 5); ++i) {
    if (symbols.describe(frames[i], i > 0).find("::on_stack_signal(") !=
        std::string::npos) {
      frames.erase(frames.begin(), frames.begin() + static_cast<int>(i) + 2);
      return;
    }
  }
}

std::string show_frames(
    base::Symbols& symbols,
    const std::vector<void*>& frames) {
  std::string lines;
  for (size_t i = 0; i < std::min(frames.size(), kShownFrames); ++i) {
    lines += "  #" + std::to_string(i) + " " +
             symbols.describe(frames[i], /*is_return=*/i > 0) + "\n";
  }
  if (frames.size() > kShownFrames) {
    lines += "  ...\n";
  }
  return lines;
}

std::string sleep_text(const StackGroup& group) {
  const char state = group.threads.front().state;
  const bool is_one = group.threads.size() == 1;
  switch (state) {
    case 'R':
      return is_one ? "runs" : "run";
    case 'S':
      return is_one ? "sleeps" : "sleep";
    case 'D':
      return "in the kernel, deaf to signals (D)";
    default:
      return std::string("state ") + state;
  }
}

std::string heading_of(const StackGroup& group) {
  std::string text = group.threads.size() == 1 ? "thread " : "threads ";
  const char* separator = "";
  for (const auto& thread : group.threads) {
    text += separator + std::to_string(thread.id) + " (" + thread.name + ")";
    separator = ", ";
  }
  text += ", " + sleep_text(group);
  const auto& obstacle = group.threads.front().obstacle;
  return text + (obstacle.empty() ? "" : ": no stack, " + obstacle) + "\n";
}

bool stands_with(const base::CapturedThread& thread, const StackGroup& group) {
  const auto& other = group.threads.front();
  return thread.frames == other.frames && thread.state == other.state &&
         thread.obstacle == other.obstacle;
}

/// Groups threads with equal stacks. Stacks with code of Weft come first.
std::vector<StackGroup> group_stacks(
    std::vector<base::CapturedThread> threads) {
  std::vector<StackGroup> groups;
  base::Symbols symbols;
  for (auto& thread : threads) {
    leave_out_handler(symbols, thread.frames);
    const auto same = std::ranges::find_if(
        groups, [&](const auto& group) { return stands_with(thread, group); });
    if (same != groups.end()) {
      same->threads.push_back(std::move(thread));
      continue;
    }
    StackGroup group;
    group.lines = show_frames(symbols, thread.frames);
    group.is_in_weft = group.lines.find("weft::") != std::string::npos;
    group.threads.push_back(std::move(thread));
    groups.push_back(std::move(group));
  }
  std::ranges::stable_partition(groups, &StackGroup::is_in_weft);
  return groups;
}

std::vector<std::string> show_stacks(
    const std::vector<StackGroup>& groups,
    size_t max_bytes) {
  std::vector<std::string> texts;
  size_t bytes = 0;
  for (const auto& group : groups) {
    std::string text = heading_of(group) + group.lines;
    bytes += text.size();
    if (bytes > max_bytes) {
      texts.push_back(
          std::to_string(groups.size() - texts.size()) +
          " more stacks are left out\n");
      break;
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

/// The state that the SIGUSR2 handler shares with the thread that it wakes.
struct StackSignal {
  sem_t requests{};
  /// The process in which that thread runs. A child made by fork() has no such
  /// thread.
  std::atomic<pid_t> server{0};
  std::atomic<int64_t> rank{0};
};
StackSignal stack_signal;

void on_stack_signal(int /*signal*/) {
  const int error = errno;
  sem_post(&stack_signal.requests);
  errno = error;
}

/// Writes to stderr. Drops the rest of the text after an error, for example if
/// no process reads the pipe.
void write_to_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(STDERR_FILENO, text.data(), text.size());
    if (size < 0 && errno != EINTR) {
      return;
    }
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  }
}

void report_stacks() {
  const auto threads = base::capture_threads(kCaptureLimit);
  const std::string rank = "rank=" + std::to_string(stack_signal.rank) + " ";
  const std::string collective = newest_collective();
  write_to_stderr(
      rank + "stacks of " + std::to_string(threads.size()) + " threads" +
      (collective.empty() ? "" : ", last collective " + collective) + "\n");
  for (const auto& text : show_stacks(group_stacks(threads), kReportBytes)) {
    write_to_stderr(rank + text);
  }
}

void serve_stack_signal() {
  while (true) {
    if (sem_wait(&stack_signal.requests) != 0) {
      continue;
    }
    while (sem_trywait(&stack_signal.requests) == 0) {
    }
    try {
      report_stacks();
    } catch (const std::exception&) {
      write_to_stderr("no memory is left to show stacks\n");
    }
  }
}

/// Starts the thread with all signals blocked, so that the other threads
/// receive them.
void start_server() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([] {
      pthread_setname_np(pthread_self(), "stacks");
      serve_stack_signal();
    }).detach();
  } catch (const std::system_error&) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

} // namespace

std::string thread_stacks(size_t max_bytes) {
  std::string all;
  for (const auto& text : show_stacks(
           group_stacks(base::capture_threads(kCaptureLimit)), max_bytes)) {
    all += text;
  }
  return all;
}

void install_stack_signal(int64_t rank) {
  stack_signal.rank = rank;
  if (stack_signal.server.exchange(getpid()) == getpid()) {
    return;
  }
  sem_init(&stack_signal.requests, 0, 0);
  start_server();
  struct sigaction action {};
  action.sa_handler = on_stack_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR2, &action, nullptr);
}

void install_stack_signal() {
  int64_t rank = 0;
  try {
    rank = read_job_rank(env::get).rank;
  } catch (const std::exception&) {
    // Malformed variables are reported where the world is created.
  }
  install_stack_signal(rank);
}

} // namespace weft::mesh
