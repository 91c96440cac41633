#include "checkpoint/files/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <system_error>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/files/error.h"
#include "mesh/error/error.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::message_of_thrown;
using ::testing::HasSubstr;

class Folders : public ::testing::Test {
 protected:
  Folders() {
    fs::create_directory(scratch_.path() / "inside");
    test::write_file(scratch_.path() / "outside", "secret");
    test::write_file(scratch_.path() / "inside" / "file", "content");
  }

  Folder inside() const { return Folder::open(scratch_.path() / "inside"); }

  std::string refusal(const std::string& name) const {
    const auto folder = inside();
    return message_of_thrown<CheckpointError>([&] { folder.open_file(name); });
  }

  test::TempFolder scratch_;
};

TEST_F(Folders, FileComesBack) {
  const auto file = inside().open_file("file");
  std::array<std::byte, 4> out{};
  EXPECT_EQ(file.size(), 7);
  EXPECT_EQ(file.read_at(3, out), 4);
  EXPECT_EQ(static_cast<char>(out[0]), 't');
  EXPECT_EQ(file.read_at(5, out), 2); // the end
  EXPECT_EQ(file.read_at(100, out), 0);
}

TEST_F(Folders, PartsAreWrittenOneBehindTheOther) {
  const auto folder = inside();
  const auto file = folder.create_file("parts");
  std::string expected;
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i) { // more than one call takes
    texts.push_back(std::string(static_cast<size_t>(i % 7), 'a' + i % 26));
    expected += texts.back();
  }
  std::vector<std::span<const std::byte>> parts;
  for (const auto& text : texts) {
    parts.push_back(std::as_bytes(std::span(text)));
  }
  file.write_at(0, parts);
  file.write_at(0, {});
  EXPECT_EQ(test::read_file(file.path()), expected);
}

TEST_F(Folders, NamesThatLeadElsewhere) {
  for (const std::string name :
       {"../outside", "..", ".", "", "/etc/passwd", "inside/../file", "a/b"}) {
    EXPECT_THAT(refusal(name), HasSubstr("valid name for a file")) << name;
    EXPECT_THROW(inside().create_file(name), mesh::UsageError) << name;
  }
  EXPECT_THAT(
      refusal(std::string("file\0x", 6)), HasSubstr("valid name for a file"));
  EXPECT_THAT(refusal("a\nb"), HasSubstr("\\x0a"));
  EXPECT_THAT(
      refusal(std::string(256, 'n')), HasSubstr("valid name for a file"));
  EXPECT_THAT(refusal("none"), HasSubstr("missing"));
}

TEST_F(Folders, WhatIsNoRegularFile) {
  const auto path = scratch_.path() / "inside";
  fs::create_symlink("../outside", path / "link");
  fs::create_symlink("file", path / "link-inside");
  fs::create_symlink("nowhere", path / "dangling");
  fs::create_directory(path / "folder");
  ASSERT_EQ(::mkfifo((path / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(refusal("link"), HasSubstr("symbolic link"));
  EXPECT_THAT(refusal("link-inside"), HasSubstr("symbolic link"));
  EXPECT_THAT(refusal("dangling"), HasSubstr("symbolic link"));
  EXPECT_THAT(refusal("folder"), HasSubstr("not a regular file"));
  EXPECT_THAT(refusal("fifo"), HasSubstr("not a regular file"));
  EXPECT_THROW(inside().create_file("dangling"), std::system_error);
  EXPECT_FALSE(fs::exists(path / "nowhere"));
}

TEST_F(Folders, ListSaysWhatIsThere) {
  const auto path = scratch_.path() / "inside";
  fs::create_symlink("file", path / "a-link");
  fs::create_directory(path / "folder");
  const auto folder = inside();
  for (int i = 0; i < 2; ++i) { // from the start each time
    const auto entries = folder.list();
    ASSERT_EQ(entries.size(), 3);
    EXPECT_EQ(entries[0].name, "a-link");
    EXPECT_FALSE(entries[0].is_file || entries[0].is_folder);
    EXPECT_TRUE(entries[1].is_file);
    EXPECT_EQ(entries[1].bytes, 7);
    EXPECT_TRUE(entries[2].is_folder);
  }
}

TEST_F(Folders, RenameNeverReplaces) {
  const auto folder = inside();
  fs::create_directory(folder.path() / "empty");
  fs::create_directory(folder.path() / "from");
  for (const std::string to : {"file", "empty"}) {
    try {
      folder.rename("from", to);
      ADD_FAILURE() << to;
    } catch (const std::system_error& error) {
      EXPECT_EQ(error.code(), std::errc::file_exists);
      EXPECT_THAT(error.what(), HasSubstr(to));
    }
  }
  folder.rename("from", "to");
  EXPECT_TRUE(folder.has("to"));
  EXPECT_FALSE(folder.has("from"));
}

TEST_F(Folders, MissingOnesAreMadeOnTheWay) {
  const auto path = scratch_.path() / "a" / "b" / "c";
  make_folders(path);
  EXPECT_TRUE(fs::is_directory(path));
  make_folders(path);
  make_folders(path / ""); // with a separator at the end
  EXPECT_THROW(
      make_folders(scratch_.path() / "outside" / "a"), std::system_error);
}

TEST_F(Folders, MissingFolderIsUsageAndExistingOneIsNotMade) {
  EXPECT_THROW(Folder::open(scratch_.path() / "none"), mesh::UsageError);
  EXPECT_THROW(Folder::open(scratch_.path() / "outside"), mesh::UsageError);
  EXPECT_THROW(Folder::create(scratch_.path() / "inside"), std::system_error);
}

TEST_F(Folders, FailedWriteNamesPathAndReason) {
  // Open for reading only.
  const auto file = inside().open_file("file");
  const std::array<std::span<const std::byte>, 1> parts = {
      std::as_bytes(std::span("x"))};
  try {
    file.write_at(0, parts);
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::bad_file_descriptor);
    EXPECT_THAT(error.what(), HasSubstr(file.path().string()));
  }
}

} // namespace
} // namespace weft::checkpoint
