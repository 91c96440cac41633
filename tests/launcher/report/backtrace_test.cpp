#include "launcher/report/backtrace.h"

#include <filesystem>
#include <fstream>

#include <dlfcn.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/stacks/symbols.h"
#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {

/// Not exported: the dynamic loader knows no name of it.
[[gnu::noinline]] int of_this_program(int number) {
  return number * 3 + 1;
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

uint64_t own_offset() {
  const auto address = reinterpret_cast<uintptr_t>(&of_this_program);
  Dl_info found{};
  dladdr(reinterpret_cast<void*>(address), &found);
  return address - reinterpret_cast<uintptr_t>(found.dli_fbase);
}

TEST(Backtrace, DemanglesWhatTheProcessFound) {
  EXPECT_THAT(
      readable_frames(
          "#0 /lib/liby.so(+0x10) _ZN4weft4mesh5sleepEi+0x4\n"
          "#1 /lib/libz.so.1(+0x2f) plain_c+0x1\n"
          "#2 /nowhere/w(+0x33)\n"
          "#3 0x1234\nSIGSEGV at address 0x0\n",
          10),
      ElementsAre(
          "#0 weft::mesh::sleep(int) in liby.so",
          "#1 plain_c in libz.so.1",
          "#2 w +0x33"));
}

TEST(Backtrace, FindsWhatTheProcessCouldNot) {
  ASSERT_EQ(of_this_program(1), 4);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const uint64_t offset = own_offset();
  EXPECT_EQ(
      base::symbol_at(program, offset), "_ZN4weft8launcher15of_this_programEi");
  char line[4096];
  std::snprintf(
      line, sizeof(line), "#0 %s(+0x%lx)\n", program.c_str(), offset + 1);
  EXPECT_THAT(
      readable_frames(line, 10),
      ElementsAre("#0 weft::launcher::of_this_program(int) in launcher_test"));
}

TEST(Backtrace, LeavesOutHowAProcessAborts) {
  EXPECT_THAT(
      readable_frames(
          "#0 /lib/libc.so.6(+0x8ae3c)\n"
          "#1 /lib/libc.so.6(+0x3bfb2) gsignal+0x12\n"
          "#2 /lib/libc.so.6(+0x26472) abort+0xd3\n"
          "#3 /lib/libx.so(+0x1) guilty+0x1\n"
          "#4 /lib/libc.so.6(+0x8ae3d)\n",
          10),
      ElementsAre("#3 guilty in libx.so", "#4 libc.so.6 +0x8ae3d"));
  EXPECT_THAT(
      readable_frames("#0 /lib/libc.so.6(+0x8ae3c)\n", 10),
      ElementsAre("#0 libc.so.6 +0x8ae3c"));
}

TEST(Backtrace, IsShort) {
  std::string callstack;
  for (int i = 0; i < 50; ++i) {
    callstack += "#" + std::to_string(i) + " /x(+0x1) " +
                 std::string(500, 'f') + "+0x1\n";
  }
  const auto lines = readable_frames(callstack, 12);
  ASSERT_EQ(lines.size(), 12);
  EXPECT_LT(lines[0].size(), 120);
}

TEST(Backtrace, BrokenInputGivesNothing) {
  const test::TempFolder folder;
  std::string elf = read_file("/proc/self/exe").substr(0, 4096);
  std::ofstream(folder / "cut", std::ios::binary) << elf;
  std::ofstream(folder / "empty").close();
  for (const char* name : {"cut", "empty", "absent", "."}) {
    EXPECT_EQ(base::symbol_at(folder / name, 0x100), "") << name;
  }
  EXPECT_THAT(readable_frames("#", 9), IsEmpty());
  EXPECT_THAT(readable_frames("#0 (+0x\n# (+0xg)\n(+0x1) #0 ", 9), IsEmpty());
}

} // namespace
} // namespace weft::launcher
