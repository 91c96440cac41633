#include "train/metrics/buffered_append_file.h"

#include <csignal>

#include <sys/resource.h>

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Lets files grow to `bytes` only, as long as it lives.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) {
    before_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit small = before_;
    small.rlim_cur = bytes;
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~SizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, before_handler_);
  }
  SizeLimit(const SizeLimit&) = delete;
  SizeLimit& operator=(const SizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*before_handler_)(int) = SIG_DFL;
};

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(BufferedAppendFile, WhatHasNoRoomIsWrittenOnceThereIsSome) {
  const fixtures::TempFolder folder;
  const auto path = folder.write("log", "first\n");
  BufferedAppendFile file(path);
  EXPECT_EQ(file.append("second\n"), "");
  {
    const SizeLimit limit(16);
    EXPECT_THAT(
        file.append("third\n"),
        AllOf(HasSubstr(path), HasSubstr("File too large")));
    EXPECT_EQ(file.append("fourth\n"), "") << "it was said already";
    EXPECT_EQ(content_of(path), "first\nsecond\nthi");
    EXPECT_THAT(
        file.finish(),
        HasSubstr("the last 10 bytes could not be written and are lost"));
  }
  EXPECT_THAT(file.append("fifth\n"), HasSubstr("no data was lost"));
  EXPECT_EQ(file.finish(), "");
  EXPECT_EQ(content_of(path), "first\nsecond\nthird\nfourth\nfifth\n");
}

TEST(BufferedAppendFile, IsRefusedWhereThereIsNoFolder) {
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [] { BufferedAppendFile file("/nowhere/log"); }),
      AllOf(HasSubstr("output_dir"), HasSubstr("No such file")));
}

} // namespace
} // namespace weft::train
