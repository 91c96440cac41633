#include "mesh/crash/crash_handler.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error_report.h"
#include "base/stacks/crash_stack.h"
#include "tests/support/temp_folder.h"

namespace weft::mesh {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// GoogleTest would catch what is thrown.
void run_uncaught(const std::function<void()>& body) noexcept {
  body();
}

class CrashHandler : public ::testing::Test {
 protected:
  /// Runs `body` in a process with the handler and returns how it ended.
  int crash(const std::function<void()>& body, bool with_file = true) {
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(open((folder_ / "stderr").c_str(), O_WRONLY | O_CREAT, 0600), 2);
      const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
      setrlimit(RLIMIT_CORE, &no_core);
      install_crash_handler(
          {.error_file = with_file ? (folder_ / "error.json").string() : "",
           .rank = 3});
      run_uncaught(body);
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
  }

  nlohmann::json error() {
    return nlohmann::json::parse(read_all(folder_ / "error.json"))
        .at("message");
  }
  std::string message() { return error().at("message"); }
  std::string said() { return read_all(folder_ / "stderr"); }

  test::TempFolder folder_;
};

/// Where nothing is mapped; not known to the compiler.
volatile int* nowhere() {
  volatile uintptr_t address = 0x10;
  return reinterpret_cast<volatile int*>(address);
}

TEST_F(CrashHandler, ASegfaultLeavesTorchrunsErrorFile) {
  const int64_t before = base::error_time_ns();
  EXPECT_EQ(crash([] { *nowhere() = 1; }), SIGSEGV);
  const auto written = error();
  EXPECT_THAT(message(), StartsWith("SIGSEGV at address 0x10 in thread "));
  EXPECT_EQ(written.at("errorCode"), 139);
  const auto& extra = written.at("extraInfo");
  const int64_t time = std::stoll(extra.at("timestamp_ns").get<std::string>());
  EXPECT_GE(time, before);
  EXPECT_LE(time, base::error_time_ns());
  EXPECT_EQ(
      std::stoll(extra.at("timestamp").get<std::string>()), time / 1000000000);
  EXPECT_EQ(extra.at("rank"), "3");
  EXPECT_THAT(
      extra.at("py_callstack").get<std::string>(),
      MatchesRegex("#0 /[^\n]*mesh_test\\(\\+0x[0-9a-f]+\\)[^\n]*\n#1 .*"));
  EXPECT_EQ(said(), "ERROR 139 rank=3 op=crash " + message() + "\n");
}

// As World::from_env() has it.
class CrashHandlerOfRank : public CrashHandler {
 protected:
  int crash_rank(
      const std::function<void()>& before,
      const std::function<void()>& body) {
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(open((folder_ / "stderr").c_str(), O_WRONLY | O_CREAT, 0600), 2);
      const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
      setrlimit(RLIMIT_CORE, &no_core);
      setenv("TORCHELASTIC_ERROR_FILE", (folder_ / "error.json").c_str(), 1);
      before();
      install_crash_handler_of_rank();
      run_uncaught(body);
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
  }
};

TEST_F(CrashHandlerOfRank, ReportsACrash) {
  EXPECT_EQ(crash_rank([] {}, [] { *nowhere() = 1; }), SIGSEGV);
  EXPECT_THAT(message(), StartsWith("SIGSEGV at address 0x10 in thread "));
  EXPECT_THAT(said(), HasSubstr(" op=crash SIGSEGV"));
}

TEST_F(CrashHandlerOfRank, IsNotThereWhereItIsNotWanted) {
  EXPECT_EQ(
      crash_rank(
          [] { setenv("WEFT_CRASH_HANDLER", "0", 1); }, [] { *nowhere() = 1; }),
      SIGSEGV);
  EXPECT_EQ(said(), "");
  EXPECT_EQ(
      crash_rank(
          [] { unsetenv("TORCHELASTIC_ERROR_FILE"); }, [] { *nowhere() = 1; }),
      SIGSEGV);
  EXPECT_EQ(said(), "");
}

TEST_F(CrashHandlerOfRank, LeavesOthersHandlersAlone) {
  const auto own = [] {
    signal(SIGSEGV, [](int) { _exit(9); });
    signal(SIGFPE, SIG_IGN);
  };
  EXPECT_EQ(crash_rank(own, [] { *nowhere() = 1; }), -9);
  EXPECT_EQ(said(), "");
  EXPECT_EQ(crash_rank(own, [] { raise(SIGFPE); }), 0);
  EXPECT_EQ(crash_rank(own, [] { std::abort(); }), SIGABRT);
  EXPECT_THAT(message(), StartsWith("SIGABRT"));
}

TEST_F(CrashHandler, TheFirstFrameIsWhereItCrashed) {
  ASSERT_EQ(crash([] { std::abort(); }), SIGABRT);
  const std::string frames = error().at("extraInfo").at("py_callstack");
  EXPECT_THAT(frames, HasSubstr(" abort+0x"));
  EXPECT_LT(frames.find(" abort+0x"), frames.find("mesh_test("));
}

TEST_F(CrashHandler, NamesTheNewestCollective) {
  EXPECT_EQ(
      crash([] {
        note_collective(7, "all_reduce", "");
        note_collective(8, "all_gather", "layers.0.wq.weight");
        raise(SIGFPE);
      }),
      SIGFPE);
  EXPECT_THAT(
      message(),
      HasSubstr(", last collective all_gather of layers.0.wq.weight #8"));
}

TEST_F(CrashHandler, AnUncaughtExceptionIsNamed) {
  EXPECT_EQ(
      crash([] {
        std::thread([] {
          pthread_setname_np(pthread_self(), "weaver");
          throw std::runtime_error("no \"yarn\"\nsecond line");
        }).join();
      }),
      SIGABRT);
  EXPECT_THAT(
      message(),
      StartsWith("SIGABRT by an uncaught std::runtime_error: no \"yarn\" in "
                 "thread weaver"));
  EXPECT_THAT(said(), HasSubstr("terminate called after throwing"));
}

TEST_F(CrashHandler, AnExhaustedMemoryIsNamedAndHasItsOwnCode) {
  EXPECT_EQ(crash([] { throw std::bad_alloc(); }), -137);
  EXPECT_THAT(message(), HasSubstr("an uncaught std::bad_alloc"));
  EXPECT_EQ(error().at("errorCode"), 137);
  EXPECT_THAT(said(), HasSubstr("\nERROR 137 rank=3 op=crash SIGABRT by an "));
}

TEST_F(CrashHandler, LibtorchsWordsForNoMemoryCountToo) {
  const std::string words =
      "DefaultCPUAllocator: can't allocate memory: you "
      "tried to allocate 64 bytes.";
  EXPECT_EQ(crash([&] { throw std::runtime_error(words); }), -137);
}

TEST_F(CrashHandler, ASignalFromOutsideNamesItsSender) {
  EXPECT_EQ(
      crash([] {
        const pid_t victim = getpid();
        if (fork() == 0) {
          kill(victim, SIGILL);
          _exit(0);
        }
        for (;;) {
          pause();
        }
      }),
      SIGILL);
  EXPECT_THAT(message(), MatchesRegex("SIGILL sent by process [0-9]+ in .*"));
}

int exhaust_stack(int depth) {
  volatile char frame[4096];
  frame[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : exhaust_stack(depth + 1) + frame[0];
}

TEST_F(CrashHandler, AStackOverflowIsReportedToo) {
  EXPECT_EQ(crash([] { exhaust_stack(0); }), SIGSEGV);
  EXPECT_THAT(message(), StartsWith("SIGSEGV at address 0x"));
}

TEST_F(CrashHandler, AStackOverflowOfAThreadThatCommunicatesIsReported) {
  EXPECT_EQ(
      crash([] {
        std::thread([] {
          pthread_setname_np(pthread_self(), "weaver");
          note_collective(7, "all_reduce", "");
          exhaust_stack(0);
        }).join();
      }),
      SIGSEGV);
  EXPECT_THAT(message(), HasSubstr(" in thread weaver, last collective "));
}

TEST_F(CrashHandler, ThreadsTakeTheirSecondStacksWithThem) {
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  EXPECT_EQ(
      crash([&] {
        std::thread(base::prepare_thread_for_crash).join();
        const auto before = mappings();
        for (int i = 0; i < 50; ++i) {
          std::thread(base::prepare_thread_for_crash).join();
        }
        _exit(mappings() > before + 10);
      }),
      0);
}

#if defined(__x86_64__)
// Its caller is where nothing is mapped: the one that looks for it crashes.
extern "C" void weft_test_lose_caller();
asm(R"(
.text
.type weft_test_lose_caller, @function
weft_test_lose_caller:
  .cfi_startproc
  movq $0x1234, (%rsp)
  ud2
  .cfi_endproc
.size weft_test_lose_caller, . - weft_test_lose_caller
)");

TEST_F(CrashHandler, ACrashOfTheReportItselfLosesTheBacktraceAlone) {
  EXPECT_EQ(crash([] { weft_test_lose_caller(); }), SIGILL);
  EXPECT_THAT(message(), StartsWith("SIGILL at address 0x"));
  EXPECT_EQ(said(), "ERROR 132 rank=3 op=crash " + message() + "\n");
}
#endif

TEST_F(CrashHandler, AReportThatDoesNotEndIsCutShort) {
  // Opened for writing, a pipe that nobody reads waits.
  ASSERT_EQ(mkfifo((folder_ / "error.json.part").c_str(), 0600), 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(crash([] { *nowhere() = 1; }), SIGSEGV);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(took, std::chrono::seconds(4));
  EXPECT_LT(took, std::chrono::seconds(8));
  EXPECT_THAT(
      said(), StartsWith("ERROR 139 rank=3 op=crash SIGSEGV at address 0x10"));
}

TEST_F(CrashHandler, WithoutAFileTheBacktraceGoesToStandardError) {
  EXPECT_EQ(crash([] { *nowhere() = 1; }, /*with_file=*/false), SIGSEGV);
  EXPECT_THAT(said(), StartsWith("#0 /"));
  EXPECT_THAT(said(), HasSubstr("\nERROR 139 rank=3 op=crash SIGSEGV at"));
}

TEST_F(CrashHandler, ThreadsThatCrashTogetherLeaveOneReport) {
  EXPECT_EQ(
      crash([] {
        std::array<std::thread, 8> threads;
        for (auto& thread : threads) {
          thread = std::thread([] { *nowhere() = 1; });
        }
        for (auto& thread : threads) {
          thread.join();
        }
      }),
      SIGSEGV);
  const std::string line = "ERROR 139 rank=3 op=crash";
  EXPECT_EQ(said().find(line), said().rfind(line));
  EXPECT_THAT(message(), StartsWith("SIGSEGV at address 0x10"));
}

TEST_F(CrashHandler, AHandlerFromBeforeSeesTheFaultToo) {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t* info, void*) {
    _exit(info->si_addr == nowhere() ? 42 : 43);
  };
  struct sigaction before {};
  sigaction(SIGSEGV, &action, &before); // which the child inherits
  EXPECT_EQ(crash([] { *nowhere() = 1; }), -42);
  sigaction(SIGSEGV, &before, nullptr);
  EXPECT_THAT(message(), StartsWith("SIGSEGV at address 0x10"));
}

TEST(ErrorFile, HasNoBytesThatAReaderOfJsonRefuses) {
  const test::TempFolder folder;
  const std::string path = folder / "error.json";
  std::string bytes;
  for (int byte = 1; byte < 256; ++byte) {
    bytes += static_cast<char>(byte);
    bytes += "\xc3\xa4 ";
  }
  ASSERT_TRUE(base::write_error_file(
      path.c_str(),
      {.code = 3,
       .rank = 0,
       .time_ns = 1700000000123456789,
       .message = bytes,
       .callstack = std::string(100000, 'x')}));
  const auto written = nlohmann::json::parse(read_all(path)).at("message");
  EXPECT_THAT(
      written.at("message").get<std::string>(),
      AllOf(HasSubstr("A\xc3\xa4 B"), HasSubstr("\x1f"), HasSubstr("?")));
  EXPECT_EQ(written.at("extraInfo").at("timestamp"), "1700000000");
  EXPECT_EQ(written.at("extraInfo").at("timestamp_ns"), "1700000000123456789");
  std::filesystem::remove_all(folder.path());
  EXPECT_FALSE(base::write_error_file(path.c_str(), {}));
}

} // namespace
} // namespace weft::mesh
