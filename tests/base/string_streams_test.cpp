#include "base/string_streams.h"

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <locale>
#include <new>
#include <optional>
#include <string>

#include <sys/resource.h>

#include <gtest/gtest.h>

#include "base/for_each_processor.h"
#include "base/read_file.h"

namespace weft::base {
namespace {

constexpr size_t kMebi = size_t{1} << 20;

/// Lets `fill` run in a process that gets no more than some memory. Exits with
/// 0 if std::bad_alloc came out of it.
template <class Fill>
void run_out_of_memory(const Fill& fill) {
  const std::string piece(kMebi, 'x');
  rlimit limit{64 * kMebi, 64 * kMebi};
  ::setrlimit(RLIMIT_DATA, &limit);
  try {
    fill(piece);
  } catch (const std::bad_alloc&) {
    std::_Exit(0);
  }
  std::_Exit(1);
}

#ifndef WEFT_IS_SANITIZED // A sanitizer ends the process without memory.
TEST(StringStreamsDeathTest, AWriterThatCannotAllocateThrows) {
  EXPECT_EXIT(
      run_out_of_memory([](const std::string& piece) {
        StringWriter writer;
        for (int i = 0; i < 256; ++i) {
          writer << piece;
        }
      }),
      ::testing::ExitedWithCode(0),
      "");
}

TEST(StringStreamsDeathTest, AReaderThatCannotAllocateThrows) {
  std::string text;
  for (int i = 0; i < 48; ++i) {
    text.append(kMebi, 'x');
  }
  StringReader reader(text);
  EXPECT_EXIT(
      run_out_of_memory([&](const std::string& /*piece*/) {
        std::string line;
        std::getline(reader, line);
      }),
      ::testing::ExitedWithCode(0),
      "");
}

TEST(ReadFileDeathTest, ThrowsWithoutMemory) {
  EXPECT_EXIT(
      run_out_of_memory(
          [](const std::string& /*piece*/) { read_file("/dev/zero"); }),
      ::testing::ExitedWithCode(0),
      "");
}
#endif

TEST(ReadFile, GivesAllBytesOrNothing) {
  const std::string folder = ::testing::TempDir();
  const std::string path = folder + "weft_read_file";
  for (const size_t size : {size_t{0}, size_t{1}, 3 * kMebi + 5}) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) {
      bytes[i] = static_cast<char>(i * 31 % 251);
    }
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_EQ(read_file(path), bytes) << size;
  }
  std::filesystem::remove(path);
  EXPECT_EQ(read_file(path), std::nullopt);
  EXPECT_EQ(read_file(folder), std::nullopt); // It opens, and has no bytes.
}

/// Groups digits: 4.000.
class Grouped : public std::numpunct<char> {
 protected:
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(StringStreams, NumbersDoNotFollowTheLocale) {
  const auto earlier =
      std::locale::global(std::locale(std::locale(), new Grouped));
  StringWriter writer;
  writer << 4000;
  StringReader reader("4000 17");
  int first = 0;
  int second = 0;
  reader >> first >> second;
  std::locale::global(earlier);
  EXPECT_EQ(writer.str(), "4000");
  EXPECT_EQ(first, 4000);
  EXPECT_EQ(second, 17);
}

} // namespace
} // namespace weft::base
