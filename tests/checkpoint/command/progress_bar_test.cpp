#include "cli/progress_bar.h"

#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::cli {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(ProgressLine, SaysPercentSizeSpeedAndFile) {
  EXPECT_EQ(
      progress_line("verifying", 3 << 20, 4 << 20, 1.25e6, "a.safetensors", 80),
      "verifying  75% of 4.0 MiB  1.2 MB/s  a.safetensors");
  EXPECT_EQ(
      progress_line("verifying", 3 << 20, 4 << 20, 1.25e6, "a.safetensors", 40),
      "verifying  75% of 4.0 MiB  1.2 MB/s");
  EXPECT_EQ(progress_line("verifying", 0, 0, 0, "", 12), "verifying 10");
  EXPECT_THAT(progress_line("x", 0, 0, 0, "", 80), HasSubstr("100% of 0 B"));
}

template <class Body>
std::string shown(ProgressBar::Options options, const Body& body) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = ::open_memstream(&text, &size);
  {
    ProgressBar bar(out, std::move(options));
    body(bar);
  }
  std::fclose(out);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(ProgressBar, IsDrawnInPlaceAndGone) {
  const auto text = shown({"reading", true, 80}, [](ProgressBar& bar) {
    const auto callback = bar.callback();
    callback(1, 100, "first");
    callback(2, 100, "second"); // too soon
    callback(100, 100, "last");
  });
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("reading   1%"), HasSubstr("100%"), EndsWith("\r\x1b[K")));
  EXPECT_EQ(text.find("second"), std::string::npos);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(ProgressBar, WritesNothingWithoutATerminal) {
  EXPECT_EQ(
      shown(
          {"reading", false, 80},
          [](ProgressBar& bar) {
            EXPECT_FALSE(bar.callback());
            bar.update(1, 2, "file");
            bar.erase();
          }),
      "");
}

} // namespace
} // namespace weft::cli
