#include "mesh/crash/crash_handler.h"

#include <cxxabi.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <typeinfo>

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/error_report.h"
#include "base/failure_line.h"
#include "base/safe_writer.h"
#include "base/stacks/callstack.h"
#include "base/stacks/crash_stack.h"
#include "base/stacks/thread_capture.h"
#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/job_rank.h"

namespace weft::mesh {
namespace {

constexpr std::array kFatal{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
/// The exit code after an uncaught std::bad_alloc: weft's
/// ExitCode::kOutOfMemory.
constexpr int kOutOfMemoryCode = 137;
/// The time limit of a report. A report that takes longer waits for a lock that
/// the crashed thread holds.
constexpr unsigned kReportSeconds = 5;

/// A text that a signal handler may read at any time. A flag is set while a
/// thread writes it.
template <size_t kBytes>
class Note {
 public:
  /// Stores the joined parts, truncated to kBytes. Does nothing if another
  /// thread is writing.
  void set(std::initializer_list<std::string_view> parts) {
    if (busy_.exchange(true, std::memory_order_acquire)) {
      return;
    }
    size_ = 0;
    for (const auto part : parts) {
      const size_t count = std::min(part.size(), kBytes - size_);
      std::memcpy(text_.data() + size_, part.data(), count);
      size_ += count;
    }
    busy_.store(false, std::memory_order_release);
  }
  /// Returns the text. Empty while a thread writes it.
  std::string_view get() const {
    return busy_.load(std::memory_order_acquire)
               ? std::string_view()
               : std::string_view(text_.data(), size_);
  }
  /// Returns a copy that other threads cannot change. Empty while a thread
  /// writes the text.
  std::string copy() {
    std::string copy(kBytes, '\0');
    if (busy_.exchange(true, std::memory_order_acquire)) {
      return "";
    }
    std::memcpy(copy.data(), text_.data(), size_);
    copy.resize(size_);
    busy_.store(false, std::memory_order_release);
    return copy;
  }

 private:
  std::atomic<bool> busy_{false};
  size_t size_ = 0;
  std::array<char, kBytes> text_{};
};

/// Everything that the handlers read and write, on any thread.
struct State {
  std::array<char, PATH_MAX> error_file{};
  std::atomic<int64_t> rank{0};
  std::atomic<bool> installed{false};
  std::array<struct sigaction, kFatal.size()> before{};
  std::terminate_handler terminate_before = nullptr;
  Note<1024> exception;
  std::atomic<bool> is_out_of_memory{false};
  Note<256> collective;
  std::atomic<pid_t> reporter{0};
  std::atomic<int> signal{0};
  // Only the reporting thread uses these.
  std::array<char, size_t{48} * 1024> callstack{};
  std::array<char, 2048> message{};
  // write_last_line() reads these if the report crashes or times out, too.
  std::atomic<int> code{0};
  std::atomic<size_t> message_bytes{0};
  std::atomic<bool> has_last_line{false};
};
State state;

std::string_view name_of(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? name : "?";
}

std::string_view first_line(std::string_view text) {
  return text.substr(0, text.find('\n'));
}

bool sent_by_a_process(const siginfo_t& info) {
  return info.si_code <= 0;
}

void describe(base::SafeWriter& out, const siginfo_t& info) {
  out << "SIG" << name_of(info.si_signo);
  const auto exception = state.exception.get();
  if (info.si_signo == SIGABRT && !exception.empty()) {
    out << " by " << exception;
  } else if (!sent_by_a_process(info) && info.si_signo != SIGABRT) {
    out << " at address "
        << base::Hex{reinterpret_cast<uintptr_t>(info.si_addr)};
  } else if (info.si_pid != getpid()) {
    out << " sent by process " << base::Decimal{info.si_pid};
  }
  std::array<char, 17> thread{};
  prctl(PR_GET_NAME, thread.data());
  out << " in thread " << thread.data();
  const auto collective = state.collective.get();
  if (!collective.empty()) {
    out << ", last collective " << collective;
  }
}

/// Writes the line that the launcher and the user look for. Does nothing if it
/// is already written.
void write_last_line() {
  if (state.has_last_line.exchange(true)) {
    return;
  }
  base::SafeWriter out(STDERR_FILENO);
  base::write_failure_start(out, state.code, state.rank, "crash");
  out << std::string_view(state.message.data(), state.message_bytes) << "\n";
}

void report(const siginfo_t& info, const void* context) {
  base::SafeWriter message(state.message);
  describe(message, info);
  state.message_bytes = message.view().size();
  const bool has_no_memory = info.si_signo == SIGABRT && state.is_out_of_memory;
  state.code = has_no_memory ? kOutOfMemoryCode : 128 + info.si_signo;
  base::ErrorRecord record{
      .code = state.code,
      .rank = state.rank,
      .time_ns = base::error_time_ns(),
      .message = message.view(),
      .cause = has_no_memory ? std::optional(base::ErrorCause::kOutOfMemory)
                             : std::nullopt,
      .callstack = ""};
  // The file is written without a backtrace first, because unwinding may crash.
  const char* path = state.error_file.data();
  const bool has_file = *path != '\0' && base::write_error_file(path, record);
  base::SafeWriter callstack(state.callstack);
  base::write_callstack(callstack, context);
  record.callstack = callstack.view();
  if (has_file) {
    base::write_error_file(path, record);
  }
  if (!has_file) {
    base::SafeWriter out(STDERR_FILENO);
    out << record.callstack;
  }
  write_last_line();
}

void restore_handlers() {
  for (size_t i = 0; i < kFatal.size(); ++i) {
    sigaction(kFatal[i], &state.before[i], nullptr);
  }
}

bool had_handler(int signal) {
  const auto at = std::find(kFatal.begin(), kFatal.end(), signal);
  const auto& action = state.before[static_cast<size_t>(at - kFatal.begin())];
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

[[noreturn]] void die_of(int signal) {
  if (state.code == kOutOfMemoryCode) {
    _exit(kOutOfMemoryCode); // A core would not show the cause.
  }
  ::signal(signal, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  raise(signal);
  _exit(128 + signal);
}

void give_up(int /*alarm*/) {
  write_last_line();
  die_of(state.signal);
}

/// Makes SIGALRM end the process if the report takes more than kReportSeconds.
void set_deadline(int signal) {
  state.signal = signal;
  ::signal(SIGALRM, give_up);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  alarm(kReportSeconds);
}

/// Keeps another crashed thread asleep while the reporting thread ends the
/// process.
void wait_for_the_end() {
  const timespec pause{.tv_sec = 2L * kReportSeconds, .tv_nsec = 0};
  nanosleep(&pause, nullptr);
}

void on_crash(int signal, siginfo_t* info, void* context) {
  if (!sent_by_a_process(*info)) {
    base::escape_capture();
  }
  pid_t reporter = 0;
  const auto self = static_cast<pid_t>(syscall(SYS_gettid));
  if (state.reporter.compare_exchange_strong(reporter, self)) {
    set_deadline(signal);
    report(*info, context);
    alarm(0);
  } else if (reporter != self) {
    wait_for_the_end();
  } else { // The report crashed, for example while unwinding.
    write_last_line();
    die_of(state.signal);
  }
  restore_handlers();
  if (!had_handler(signal)) {
    die_of(signal);
  }
  // The fault happens again after the return, and the previous handler gets it.
  // A signal that a process sent does not, so it is raised.
  if (sent_by_a_process(*info)) {
    raise(signal);
  }
}

/// Stores the type and what() of the exception for the SIGABRT that follows.
void on_terminate() {
  const auto* type = abi::__cxa_current_exception_type();
  if (type == nullptr) {
    state.exception.set({"std::terminate"});
  } else {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> name(
        abi::__cxa_demangle(type->name(), nullptr, nullptr, &status),
        &std::free);
    const std::string_view shown = name ? name.get() : type->name();
    state.exception.set({"an uncaught ", shown});
    try {
      throw;
    } catch (const std::bad_alloc&) {
      state.is_out_of_memory = true;
    } catch (const std::exception& error) {
      state.exception.set(
          {"an uncaught ", shown, ": ", first_line(error.what())});
      state.is_out_of_memory =
          std::strstr(error.what(), "can't allocate memory") != nullptr;
    } catch (...) {
    }
  }
  if (state.terminate_before != nullptr) {
    state.terminate_before();
  }
  std::abort();
}

/// Installs the handlers. Unless `all` is true, signals that already have a
/// handler keep it.
void set_handlers(bool all) {
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  // SA_NODEFER: a crash in the handler calls the handler again.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kFatal.size(); ++i) {
    sigaction(kFatal[i], nullptr, &state.before[i]);
    if (all || state.before[i].sa_handler == SIG_DFL) {
      sigaction(kFatal[i], &action, nullptr);
    }
  }
  state.terminate_before = std::set_terminate(on_terminate);
}

void install(const CrashContext& context, bool all) {
  const size_t length =
      std::min(context.error_file.size(), state.error_file.size() - 1);
  std::memcpy(state.error_file.data(), context.error_file.data(), length);
  state.error_file[length] = '\0';
  state.rank = context.rank;
  if (state.installed.exchange(true)) {
    return;
  }
  base::prepare_callstack();
  base::prepare_thread_for_crash();
  set_handlers(all);
}

CrashContext context_of_launcher() {
  CrashContext context;
  context.error_file = env::get("TORCHELASTIC_ERROR_FILE").value_or("");
  try {
    context.rank = read_job_rank(env::get).rank;
  } catch (const std::exception&) {
    // Malformed variables are reported where the world is created.
  }
  return context;
}

} // namespace

void install_crash_handler(const CrashContext& context) {
  install(context, /*all=*/true);
}

void install_crash_handler() {
  install_crash_handler(context_of_launcher());
}

void install_crash_handler_of_rank() {
  if (!state.installed.load() && env::get("TORCHELASTIC_ERROR_FILE") &&
      env::get("WEFT_CRASH_HANDLER").value_or("1") != "0") {
    install(context_of_launcher(), /*all=*/false);
  }
}

void note_collective(
    uint64_t sequence,
    std::string_view op,
    std::string_view name) {
  if (!state.installed.load(std::memory_order_relaxed)) {
    return;
  }
  base::prepare_thread_for_crash();
  std::array<char, 32> number;
  base::SafeWriter digits(number);
  digits << " #" << base::Decimal{static_cast<int64_t>(sequence)};
  const bool named = !name.empty();
  state.collective.set(
      {op, named ? " of " : "", named ? name : "", digits.view()});
}

std::string newest_collective() {
  return state.collective.copy();
}

} // namespace weft::mesh
