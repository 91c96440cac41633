#include "mesh/communicator/caller.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <filesystem>
#include <string_view>

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mesh/communicator/flight_recorder.h"
#include "mesh/communicator/format.h"
#include "mesh/error/error.h"

namespace weft::mesh {

struct CallingThread {
  int64_t number = 0;
  std::string name;
  /// True for threads of libtorch's autograd engine, which run backward passes
  /// for other threads.
  bool is_autograds = false;
  mutable std::atomic<bool> has_ended = false;
};

namespace {

using ThreadHandle = std::shared_ptr<const CallingThread>;

struct ThreadSlot {
  ThreadHandle own;
  /// The thread that this one calls for. Null means itself.
  ThreadHandle called_for;
};

void end_thread(void* memory) {
  const std::unique_ptr<ThreadSlot> slot(static_cast<ThreadSlot*>(memory));
  slot->own->has_ended = true;
}

int64_t own_thread_number() {
  return static_cast<int64_t>(::syscall(SYS_gettid));
}

ThreadHandle make_thread() {
  constexpr std::string_view kEngine = "pt_autograd";
  constexpr size_t kNameBytes = 16;
  std::array<char, kNameBytes> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  auto thread = std::make_shared<CallingThread>();
  thread->number = own_thread_number();
  thread->name = name.data();
  thread->is_autograds = thread->name.starts_with(kEngine);
  return thread;
}

/// The pthread key of all slots. pthread calls end_thread() when a thread ends.
class ThreadSlots {
 public:
  ThreadSlots() {
    TORCH_INTERNAL_ASSERT(pthread_key_create(&key_, end_thread) == 0);
  }

  ThreadSlot& own() const {
    if (void* found = pthread_getspecific(key_)) {
      return *static_cast<ThreadSlot*>(found);
    }
    auto slot = std::make_unique<ThreadSlot>();
    slot->own = make_thread();
    pthread_setspecific(key_, slot.get());
    return *slot.release();
  }

 private:
  pthread_key_t key_{};
};

ThreadSlot& own_slot() {
  static const ThreadSlots slots;
  return slots.own();
}

const ThreadHandle& calling_thread() {
  const auto& slot = own_slot();
  return slot.called_for ? slot.called_for : slot.own;
}

std::set<int64_t> living_threads(int64_t own) {
  std::set<int64_t> result;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task", error)) {
    const auto text = entry.path().filename().string();
    int64_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    if (number != own) {
      result.insert(number);
    }
  }
  return result;
}

std::string describe_thread(const CallingThread& thread) {
  return detail::concat("thread ", thread.number, " (", thread.name, ")");
}

} // namespace

Caller Caller::current() {
  return Caller(calling_thread());
}

CallerScope::CallerScope(Caller caller) {
  auto& slot = own_slot();
  before_ = std::exchange(slot.called_for, std::move(caller.thread_));
}

CallerScope::~CallerScope() {
  own_slot().called_for = std::move(before_);
}

Callers::Callers() : last_(calling_thread()) {
  known_.push_back({last_, 0});
  // If the first thread of the process creates the group, threads that exist
  // already may call on it, because the program hands the group to them. If
  // another thread creates it, threads may have raced to be first, with
  // different results on different ranks. So enter() refuses the threads that
  // exist now.
  if (last_->number != ::getpid()) {
    beside_ = living_threads(last_->number);
    newest_ = describe_thread(*last_) + " made the group";
  }
}

Callers::Entry Callers::enter(const FlightRecorderEntry& call) {
  const auto& thread = calling_thread();
  if (thread == last_) {
    return {last_caller_, {}};
  }
  const auto known = std::ranges::find(known_, thread, &Known::thread);
  if (known != known_.end()) {
    last_ = thread;
    last_caller_ = known->caller;
    return {last_caller_, {}};
  }
  if (thread->is_autograds) {
    return {last_caller_, {}};
  }
  if (beside_.contains(thread->number)) {
    return {
        next_caller_,
        detail::concat(
            describe_thread(*thread),
            " calls ",
            call_text(call),
            " and lived already when ",
            newest_)};
  }
  std::erase_if(
      known_, [](const Known& k) { return k.thread->has_ended.load(); });
  last_ = thread;
  last_caller_ = next_caller_++;
  known_.push_back({last_, last_caller_});
  beside_ = living_threads(thread->number);
  newest_ =
      describe_thread(*thread) + " made its first call, " + call_text(call);
  return {last_caller_, {}};
}

} // namespace weft::mesh
