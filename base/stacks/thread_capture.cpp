#include "base/stacks/thread_capture.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <span>
#include <thread>

#include <sys/syscall.h>
#include <unistd.h>

#include "base/stacks/callstack.h"

namespace weft::base {
namespace {

using CaptureClock = std::chrono::steady_clock;

constexpr size_t kCaptureSlots = 64;
constexpr size_t kCapturedFrames = 64;
constexpr std::chrono::microseconds kCapturePause(200);
/// The additional wait for a thread that is writing its frames at the time
/// limit.
constexpr std::chrono::milliseconds kCaptureGrace(50);

// Note [Capture slots]
// ~~~~~~~~~~~~~~~~~~~~
// Each thread writes its frames into a slot that the capturing thread has
// reserved for it. The state of a slot is a ticket, which is never used twice,
// and a phase. The signal handler takes the slot by changing (ticket, asked) to
// (ticket, writing). The capturing thread gives up by changing (ticket, asked)
// to (ticket, free). So a handler that runs late finds another state and writes
// nothing. A slot whose handler is stuck in the writing phase is never reused.

enum class Phase : uint64_t { kFree, kAsked, kWriting, kDone };

constexpr uint64_t state_of(uint64_t ticket, Phase phase) {
  return ticket << 2 | static_cast<uint64_t>(phase);
}

constexpr Phase phase_of(uint64_t state) {
  return static_cast<Phase>(state & 3);
}

struct CaptureSlot {
  std::atomic<uint64_t> state{state_of(0, Phase::kFree)};
  size_t count = 0;
  std::array<void*, kCapturedFrames> frames{};
  /// The ID of the thread that writes, and the point to which escape_capture()
  /// returns if unwinding the stack crashes.
  std::atomic<pid_t> writer{0};
  sigjmp_buf remedy{};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// The only memory of the signal handlers. They may run on any thread.
std::array<CaptureSlot, kCaptureSlots> capture_slots;

/// The payload of the signal: the index of a slot and the ticket.
struct CaptureRequest {
  uint64_t ticket = 0;
  size_t slot = 0;

  void* pack() const {
    return reinterpret_cast<void*>(ticket * kCaptureSlots + slot);
  }
  static CaptureRequest unpack(const void* packed) {
    const auto number = reinterpret_cast<uintptr_t>(packed);
    return {number / kCaptureSlots, number % kCaptureSlots};
  }
};

void write_frames(CaptureSlot& slot, const void* context) {
  slot.writer = static_cast<pid_t>(syscall(SYS_gettid));
  if (sigsetjmp(slot.remedy, 0) == 0) {
    slot.count = read_callstack(slot.frames, context);
  } else {
    slot.count = read_program_counter(slot.frames, context);
  }
  slot.writer = 0;
}

void on_capture(int /*signal*/, siginfo_t* info, void* context) {
  if (info->si_code != SI_QUEUE || info->si_pid != getpid()) {
    return;
  }
  const int error = errno;
  const auto request = CaptureRequest::unpack(info->si_value.sival_ptr);
  auto& slot = capture_slots[request.slot];
  uint64_t asked = state_of(request.ticket, Phase::kAsked);
  if (slot.state.compare_exchange_strong(
          asked, state_of(request.ticket, Phase::kWriting))) {
    write_frames(slot, context);
    slot.state = state_of(request.ticket, Phase::kDone);
  }
  errno = error;
}

/// Installs the handler for an unused real-time signal and returns the signal.
/// Returns 0 if there is none, or if sigaction() fails.
int install_capture_handler() {
  prepare_callstack();
  for (int signal = SIGRTMAX - 1; signal >= SIGRTMIN; --signal) {
    struct sigaction action {};
    if (sigaction(signal, nullptr, &action) == 0 &&
        action.sa_handler == SIG_DFL) {
      action.sa_sigaction = on_capture;
      action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
      sigemptyset(&action.sa_mask);
      return sigaction(signal, &action, nullptr) == 0 ? signal : 0;
    }
  }
  return 0;
}

struct ThreadStatus {
  char state = '?';
  /// The mask of blocked signals. Bit n - 1 is signal n.
  uint64_t blocked = 0;
};

ThreadStatus read_status(const std::filesystem::path& task) {
  constexpr std::string_view kState = "State:\t";
  constexpr std::string_view kBlocked = "SigBlk:\t";
  ThreadStatus status;
  std::ifstream file(task / "status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kState) && line.size() > kState.size()) {
      status.state = line[kState.size()];
    } else if (line.starts_with(kBlocked)) {
      std::from_chars(
          line.data() + kBlocked.size(),
          line.data() + line.size(),
          status.blocked,
          16);
    }
  }
  return status;
}

struct AskedThread {
  CapturedThread* thread = nullptr;
  CaptureRequest request;
};

/// A set of requests that are sent to threads and then collected. Each request
/// occupies a slot.
class CaptureRound {
 public:
  explicit CaptureRound(int signal, uint64_t& next_ticket)
      : signal_(signal), next_ticket_(next_ticket) {}

  /// Sends a request to `thread`. Returns false if no slot is free.
  bool ask(CapturedThread& thread) {
    while (next_slot_ < kCaptureSlots &&
           phase_of(capture_slots[next_slot_].state) != Phase::kFree) {
      reclaim(capture_slots[next_slot_]);
      next_slot_ += phase_of(capture_slots[next_slot_].state) != Phase::kFree;
    }
    if (next_slot_ == kCaptureSlots) {
      return false;
    }
    const CaptureRequest request{next_ticket_++, next_slot_++};
    capture_slots[request.slot].state = state_of(request.ticket, Phase::kAsked);
    siginfo_t info{};
    info.si_signo = signal_;
    info.si_code = SI_QUEUE;
    info.si_pid = getpid();
    info.si_uid = getuid();
    info.si_value.sival_ptr = request.pack();
    if (syscall(SYS_rt_tgsigqueueinfo, getpid(), thread.id, signal_, &info) !=
        0) {
      capture_slots[request.slot].state =
          state_of(request.ticket, Phase::kFree);
      thread.obstacle = errno == ESRCH ? "it has ended" : "cannot be asked";
    } else {
      asked_.push_back({&thread, request});
    }
    return true;
  }

  void collect(std::chrono::milliseconds limit) {
    const auto deadline = CaptureClock::now() + limit;
    for (auto& one : asked_) {
      wait_for(one, deadline);
      take(one, limit);
    }
    asked_.clear();
    next_slot_ = 0;
  }

 private:
  /// Frees a slot whose thread finished after the capturing thread gave up.
  static void reclaim(CaptureSlot& slot) {
    uint64_t state = slot.state;
    if (phase_of(state) == Phase::kDone) {
      slot.state = state_of(state >> 2, Phase::kFree);
    }
  }

  static bool is_done(const AskedThread& one) {
    return phase_of(capture_slots[one.request.slot].state) == Phase::kDone;
  }

  static void wait_for(
      const AskedThread& one,
      CaptureClock::time_point deadline) {
    while (!is_done(one) && CaptureClock::now() < deadline) {
      std::this_thread::sleep_for(kCapturePause);
    }
    uint64_t asked = state_of(one.request.ticket, Phase::kAsked);
    const uint64_t free = state_of(one.request.ticket, Phase::kFree);
    if (is_done(one) ||
        capture_slots[one.request.slot].state.compare_exchange_strong(
            asked, free)) {
      return;
    }
    const auto grace = CaptureClock::now() + kCaptureGrace;
    while (!is_done(one) && CaptureClock::now() < grace) {
      std::this_thread::sleep_for(kCapturePause);
    }
  }

  static void take(const AskedThread& one, std::chrono::milliseconds limit) {
    auto& slot = capture_slots[one.request.slot];
    if (is_done(one)) {
      const auto frames = std::span(slot.frames).first(slot.count);
      one.thread->frames.assign(frames.begin(), frames.end());
      slot.state = state_of(one.request.ticket, Phase::kFree);
    } else {
      one.thread->obstacle =
          "no answer in " + std::to_string(limit.count()) + " ms";
    }
  }

  const int signal_;
  uint64_t& next_ticket_;
  size_t next_slot_ = 0;
  std::vector<AskedThread> asked_;
};

std::vector<CapturedThread> other_threads(int signal) {
  const auto self = static_cast<pid_t>(syscall(SYS_gettid));
  std::vector<CapturedThread> threads;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task", error)) {
    const std::string number = task.path().filename();
    CapturedThread thread;
    std::from_chars(number.data(), number.data() + number.size(), thread.id);
    if (thread.id == self) {
      continue;
    }
    std::ifstream comm(task.path() / "comm");
    std::getline(comm, thread.name);
    const auto status = read_status(task.path());
    thread.state = status.state;
    if (signal == 0) {
      thread.obstacle = "no real-time signal is free to ask with";
    } else if ((status.blocked >> (signal - 1) & 1) != 0) {
      thread.obstacle = "it blocks signal " + std::to_string(signal);
    }
    threads.push_back(std::move(thread));
  }
  std::ranges::sort(threads, {}, &CapturedThread::id);
  return threads;
}

struct Capturer {
  std::mutex mutex;
  int signal = -1;
  uint64_t next_ticket = 1;
};
Capturer capturer;

} // namespace

std::vector<CapturedThread> capture_threads(std::chrono::milliseconds limit) {
  const std::lock_guard lock(capturer.mutex);
  if (capturer.signal < 0) {
    capturer.signal = install_capture_handler();
  }
  auto threads = other_threads(capturer.signal);
  CaptureRound round(capturer.signal, capturer.next_ticket);
  for (auto& thread : threads) {
    if (thread.obstacle.empty() && !round.ask(thread)) {
      round.collect(limit);
      if (!round.ask(thread)) {
        thread.obstacle = "earlier questions were never answered";
      }
    }
  }
  round.collect(limit);
  return threads;
}

void escape_capture() {
  const auto self = static_cast<pid_t>(syscall(SYS_gettid));
  for (auto& slot : capture_slots) {
    if (slot.writer == self) {
      slot.writer = 0;
      siglongjmp(slot.remedy, 1);
    }
  }
}

} // namespace weft::base
