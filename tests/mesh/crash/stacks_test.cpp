#include "mesh/crash/stacks.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/stacks/thread_capture.h"
#include "mesh/crash/crash_handler.h"

namespace weft::mesh {

// With names to look for.

[[gnu::noinline]] void weave_in_a_loop(const std::atomic<bool>& is_over) {
  while (!is_over) {
  }
  asm volatile("");
}

[[gnu::noinline]] void wait_for_yarn(const std::atomic<bool>& is_over) {
  is_over.wait(false);
  asm volatile("");
}

namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Threads that end with this, and have begun when it is made.
class NamedThreads {
 public:
  using Body = std::function<void(const std::atomic<bool>& is_over)>;

  NamedThreads() = default;
  ~NamedThreads() {
    is_over_ = true;
    is_over_.notify_all();
    for (auto& thread : threads_) {
      thread.join();
    }
  }
  NamedThreads(const NamedThreads&) = delete;
  NamedThreads& operator=(const NamedThreads&) = delete;

  void add(const char* name, const Body& body) {
    std::atomic<bool> has_begun{false};
    threads_.emplace_back([this, name, body, &has_begun] {
      pthread_setname_np(pthread_self(), name);
      has_begun = true;
      body(is_over_);
    });
    while (!has_begun) {
      std::this_thread::yield();
    }
  }

 private:
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> threads_;
};

/// The stacks once `part` is in them, as threads come to rest.
std::string stacks_with(const std::string& part) {
  std::string stacks = thread_stacks();
  for (int i = 0; i < 200 && stacks.find(part) == std::string::npos; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    stacks = thread_stacks();
  }
  return stacks;
}

TEST(ThreadStacks, NameThreadsAndTheirFunctions) {
  NamedThreads threads;
  threads.add("busy", weave_in_a_loop);
  threads.add("idle", wait_for_yarn);
  const std::string stacks = stacks_with(" (idle), sleeps\n");
  EXPECT_THAT(stacks, HasSubstr(" (busy), runs\n"));
  EXPECT_THAT(
      stacks,
      HasSubstr("weft::mesh::weave_in_a_loop(std::atomic<bool>"
                " const&) in "));
  EXPECT_THAT(
      stacks, HasSubstr(" (idle), sleeps\n  #0 syscall in libc.so.6\n"));
  EXPECT_THAT(stacks, HasSubstr("weft::mesh::wait_for_yarn("));
}

TEST(ThreadStacks, OfThreadsThatDoTheSameStandTogetherOnce) {
  NamedThreads threads;
  for (const char* name : {"one", "two", "three"}) {
    threads.add(name, wait_for_yarn);
  }
  const std::string function = "weft::mesh::wait_for_yarn(";
  std::string stacks = stacks_with(" (three), sleep\n");
  for (int i = 0; i < 200 && stacks.find(function) != stacks.rfind(function);
       ++i) { // one is still on its way
    stacks = stacks_with(" (three), sleep\n");
  }
  EXPECT_EQ(stacks.find(function), stacks.rfind(function)) << stacks;
  EXPECT_THAT(
      stacks,
      AllOf(
          StartsWith("threads "),
          HasSubstr(" (one), "),
          HasSubstr(" (two), "),
          HasSubstr(" (three), sleep\n")));
}

TEST(ThreadStacks, AreCutToSize) {
  NamedThreads threads;
  threads.add("busy", weave_in_a_loop);
  EXPECT_THAT(thread_stacks(10), HasSubstr(" more stacks are left out\n"));
}

TEST(ThreadStacks, AThreadThatBlocksSignalsIsNamedAtOnce) {
  NamedThreads threads;
  threads.add("deaf", [](const std::atomic<bool>& is_over) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    wait_for_yarn(is_over);
  });
  const std::string said = " (deaf), sleeps: no stack, it blocks signal";
  ASSERT_THAT(stacks_with(said), HasSubstr(said));
  const auto begin = std::chrono::steady_clock::now();
  thread_stacks();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(400));
}

/// 'D' while the kernel does not let signals through.
char state_of_thread(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(')');
  return name_end == std::string::npos ? '?' : line.at(name_end + 2);
}

// It blocks signals in the kernel: vfork's caller waits for its child.
TEST(ThreadStacks, AThreadThatDoesNotAnswerIsNamedAfterTheLimit) {
  NamedThreads threads;
  std::atomic<pid_t> parent{0};
  std::atomic<bool> is_back{false};
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  threads.add("parent", [&](const std::atomic<bool>& /*is_over*/) {
    parent = static_cast<pid_t>(syscall(SYS_gettid));
    const pid_t child = vfork();
    if (child == 0) {
      char released = 0;
      _exit(read(ends[0], &released, 1) == 1 ? 0 : 1);
    }
    waitpid(child, nullptr, 0);
    is_back = true;
  });
  while (parent == 0 || state_of_thread(parent) != 'D') {
    std::this_thread::yield();
  }
  EXPECT_THAT(
      thread_stacks(),
      AllOf(HasSubstr(" (parent), "), HasSubstr("no answer in 500 ms")));
  EXPECT_EQ(write(ends[1], "", 1), 1);
  // Its answer comes late, and is nobody else's.
  while (!is_back) {
    std::this_thread::yield();
  }
  close(ends[0]);
  close(ends[1]);
  for (int i = 0; i < 200; ++i) {
    for (const auto& thread : base::capture_threads(milliseconds(20'000))) {
      EXPECT_EQ(thread.obstacle, "");
    }
  }
}

TEST(ThreadStacks, MoreThreadsThanAreAskedAtOnce) {
  NamedThreads threads;
  for (int i = 0; i < 150; ++i) {
    threads.add("many", wait_for_yarn);
  }
  const auto captured = base::capture_threads(milliseconds(2000));
  EXPECT_EQ(captured.size(), 150U);
  for (const auto& thread : captured) {
    EXPECT_GT(thread.frames.size(), 2U) << thread.obstacle;
  }
}

#if defined(__x86_64__)
// Waits until *is_over, and all that time says that its caller is where nothing
// is mapped: the one that looks for it crashes.
extern "C" void weft_test_hide_caller(const void* is_over);
asm(R"(
.text
.type weft_test_hide_caller, @function
weft_test_hide_caller:
  .cfi_startproc
  movq (%rsp), %rax
  movq $0x1234, (%rsp)
1:
  pause
  cmpb $0, (%rdi)
  je 1b
  movq %rax, (%rsp)
  ret
  .cfi_endproc
.size weft_test_hide_caller, . - weft_test_hide_caller
)");

TEST(ThreadStacks, OfAThreadWhoseStackCannotBeReadDoNotEndIt) {
  const pid_t pid = fork();
  if (pid == 0) {
    install_crash_handler({.error_file = "", .rank = 0});
    NamedThreads threads;
    threads.add("odd", [](const std::atomic<bool>& is_over) {
      weft_test_hide_caller(&is_over);
    });
    bool is_shown = false;
    for (int i = 0; i < 20; ++i) {
      const std::string stacks = thread_stacks();
      is_shown |= stacks.find(" (odd), runs\n  #0 weft_test_hide_caller in ") !=
                  std::string::npos;
    }
    _exit(is_shown ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}
#endif

/// Runs `body` in a process of its own and returns what it wrote to standard
/// error.
[[gnu::noinline]] std::string said_by(const std::function<void()>& body) {
  std::string name = ::testing::TempDir() + "weft_stacks_XXXXXX";
  const int file = mkstemp(name.data());
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(file, STDERR_FILENO);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  std::ifstream written(name);
  std::string said{std::istreambuf_iterator<char>(written), {}};
  close(file);
  std::filesystem::remove(name);
  return said;
}

off_t size_of_stderr() {
  return lseek(STDERR_FILENO, 0, SEEK_END);
}

/// Until standard error, a file, has not grown for a while.
void wait_for_report(off_t before) {
  off_t size = before;
  for (int quiet = 0; quiet < 10;) {
    std::this_thread::sleep_for(milliseconds(20));
    const off_t now = size_of_stderr();
    quiet = now > before && now == size ? quiet + 1 : 0;
    size = now;
  }
}

TEST(StackSignal, WritesAllStacksAndTheNewestCollective) {
  const std::string said = said_by([] {
    install_crash_handler({.error_file = "", .rank = 3});
    install_stack_signal(3);
    note_collective(812, "all_reduce", "layers.0.wq.weight");
    NamedThreads threads;
    threads.add("weaver", wait_for_yarn);
    stacks_with(" (weaver), sleeps\n");
    kill(getpid(), SIGUSR2);
    wait_for_report(0);
  });
  EXPECT_THAT(
      said,
      AllOf(
          StartsWith(
              "rank=3 stacks of 2 threads, last collective all_reduce of "
              "layers.0.wq.weight #812\nrank=3 thread "),
          HasSubstr("weft::mesh::wait_for_yarn("),
          HasSubstr(" (weaver), sleeps\n"),
          HasSubstr("weft::mesh::(anonymous namespace)::said_by"),
          Not(HasSubstr("on_stack_signal"))));
}

TEST(StackSignal, AThousandInARowDoNoHarm) {
  const std::string said = said_by([] {
    install_stack_signal(0);
    NamedThreads threads;
    threads.add("busy", weave_in_a_loop);
    std::atomic<int> failures{0};
    // What SA_RESTART restarts: reads that wait.
    threads.add("reader", [&](const std::atomic<bool>& is_over) {
      int ends[2];
      failures += pipe(ends) != 0;
      std::thread writer([&] {
        while (!is_over) {
          std::this_thread::sleep_for(milliseconds(5));
          failures += write(ends[1], "y", 1) != 1;
        }
        failures += write(ends[1], "z", 1) != 1;
      });
      for (char byte = 'y'; byte != 'z';) {
        failures += read(ends[0], &byte, 1) != 1;
      }
      writer.join();
    });
    for (int i = 0; i < 1000; ++i) {
      errno = 77;
      kill(getpid(), SIGUSR2);
      failures += errno != 77;
      if (i % 10 == 0) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
    wait_for_report(0);
    dprintf(STDERR_FILENO, "failures %d\n", failures.load());
  });
  EXPECT_THAT(said, HasSubstr("failures 0\n"));
  EXPECT_THAT(said, HasSubstr("weft::mesh::weave_in_a_loop("));
}

} // namespace
} // namespace weft::mesh
