#include "data/text_corpus.h"

#include <sys/stat.h>

#include <filesystem>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string text_of(TextCorpus& corpus, int64_t offset, int64_t length) {
  std::string text(static_cast<size_t>(length), '\0');
  corpus.read(
      offset,
      {reinterpret_cast<uint8_t*>(text.data()), static_cast<size_t>(length)});
  return text;
}

std::string all_text(TextCorpus& corpus) {
  return text_of(corpus, 0, corpus.size());
}

// The names of the files below `folder`.
std::vector<std::string> names_in(
    const fixtures::TempFolder& folder,
    const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const DataFile& file : find_files(paths, "data.paths")) {
    names.push_back(file.path.substr(folder.path().size() + 1));
  }
  return names;
}

std::string corpus_refusal(const std::vector<std::string>& paths) {
  return fixtures::message_of<mesh::UsageError>(
      [&] { TextCorpus(paths, "r.yaml:3:9: data.paths"); });
}

TEST(FindFiles, WalksFoldersInTheOrderOfBytes) {
  const fixtures::TempFolder folder;
  for (const auto* name :
       {"b.txt", "B.txt", "a/z", "a/b/c", "a-b", ".hidden", ".git/config"}) {
    folder.write(name, "x");
  }
  folder.write("empty", "");
  EXPECT_THAT(
      names_in(folder, {folder.path()}),
      ElementsAre("B.txt", "a-b", "a/b/c", "a/z", "b.txt"));
  EXPECT_THAT(
      names_in(folder, {folder / "b.txt", folder / "a"}),
      ElementsAre("b.txt", "a/b/c", "a/z"));
}

TEST(FindFiles, ExpandsGlobs) {
  const fixtures::TempFolder folder;
  for (const auto* name : {"x1/a.txt", "x2/a.txt", "x2/y/b.txt", "x2/c.md"}) {
    folder.write(name, name);
  }
  EXPECT_THAT(
      names_in(folder, {folder / "x?/*.txt"}),
      ElementsAre("x1/a.txt", "x2/a.txt"));
  EXPECT_THAT(
      names_in(folder, {folder / "x[2]"}),
      ElementsAre("x2/a.txt", "x2/c.md", "x2/y/b.txt"));
  EXPECT_THAT(
      names_in(folder, {folder / "**/*.txt"}),
      ElementsAre("x1/a.txt", "x2/a.txt", "x2/y/b.txt"));
  EXPECT_THAT(
      names_in(folder, {folder / "x*/**/y/*.txt"}), ElementsAre("x2/y/b.txt"));
  EXPECT_THROW(names_in(folder, {folder / "**/y*"}), mesh::UsageError)
      << "y is a folder: ** is followed by names of files";
}

TEST(FindFiles, TakesAFileOnce) {
  const fixtures::TempFolder folder;
  const std::string file = folder.write("sub/a.txt", "x");
  fs::create_symlink(folder / "sub", folder / "sub/loop");
  fs::create_symlink(file, folder / "sub/b.txt");
  EXPECT_THAT(
      names_in(folder, {folder.path(), file, folder / "s*/*.txt"}),
      ElementsAre("sub/a.txt"));
}

TEST(FindFiles, AnExistingNameIsNoPattern) {
  const fixtures::TempFolder folder;
  folder.write("a[1].txt", "x");
  folder.write("a1.txt", "x");
  EXPECT_THAT(names_in(folder, {folder / "a[1].txt"}), ElementsAre("a[1].txt"));
}

TEST(TextCorpus, RefusesPathsThatNameNothing) {
  const fixtures::TempFolder folder;
  const std::string good = folder.write("good", "x");
  EXPECT_EQ(
      corpus_refusal({good, folder / "nope"}),
      "r.yaml:3:9: data.paths[1]: \"" + (folder / "nope") +
          "\": No such file or directory");
  EXPECT_EQ(
      corpus_refusal({folder / "*.txt"}),
      "r.yaml:3:9: data.paths[0]: \"" + (folder / "*.txt") +
          "\": matches no file");
  fs::create_directory(folder / "bare");
  EXPECT_EQ(
      corpus_refusal({folder / "bare"}),
      "r.yaml:3:9: data.paths[0]: \"" + (folder / "bare") +
          "\": no files below");
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(
      corpus_refusal({fifo}), HasSubstr("is neither a file nor a folder"));
  EXPECT_EQ(
      corpus_refusal({folder.write("e1", ""), folder.write("e2", "")}),
      "r.yaml:3:9: data.paths: all files are empty");
}

TEST(TextCorpus, ReadsAcrossFiles) {
  const fixtures::TempFolder folder;
  folder.write("a", "abc");
  folder.write("b", "");
  folder.write("c", "d");
  folder.write("d", "efgh");
  TextCorpus corpus({folder.path()});
  EXPECT_EQ(corpus.size(), 8);
  EXPECT_EQ(all_text(corpus), "abcdefgh");
  for (int64_t begin = 0; begin <= 8; ++begin) {
    for (int64_t length = 0; begin + length <= 8; ++length) {
      EXPECT_EQ(
          text_of(corpus, begin, length),
          std::string("abcdefgh")
              .substr(static_cast<size_t>(begin), static_cast<size_t>(length)));
    }
  }
  EXPECT_THROW(text_of(corpus, 7, 2), c10::ValueError);
  EXPECT_THROW(text_of(corpus, -1, 1), c10::ValueError);
}

TEST(TextCorpus, KeepsEveryByte) {
  const fixtures::TempFolder folder;
  std::string bytes(256, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  TextCorpus corpus({folder.write("bytes", bytes)});
  EXPECT_EQ(all_text(corpus), bytes);
}

TEST(TextCorpus, OpensMoreFilesThanItKeepsOpen) {
  const fixtures::TempFolder folder;
  std::string all;
  for (int i = 100; i < 200; ++i) {
    folder.write(std::to_string(i), std::to_string(i));
    all += std::to_string(i);
  }
  TextCorpus corpus({folder.path()});
  const auto open_files = [] {
    return std::distance(
        fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = open_files();
  EXPECT_EQ(all_text(corpus), all);
  EXPECT_EQ(open_files() - before, 32);
  EXPECT_EQ(text_of(corpus, 0, 3), "100");
  { const TextCorpus moved = std::move(corpus); }
  EXPECT_EQ(open_files(), before);
}

TEST(TextCorpus, NoticesFilesThatChange) {
  const fixtures::TempFolder folder;
  folder.write("a", "0123456789");
  const std::string path = folder.write("b", "0123456789");
  const auto message = [&](TextCorpus& corpus) {
    return fixtures::message_of<DataError>([&] { text_of(corpus, 8, 8); });
  };
  TextCorpus corpus({folder.path()});
  TextCorpus open({folder.path()});
  EXPECT_EQ(message(open), "");

  fs::resize_file(path, 4);
  EXPECT_EQ(
      message(corpus),
      "data file \"" + path +
          "\", offset 0: the file changed after the run started: it had 10 "
          "bytes then and has 4 now");
  EXPECT_EQ(
      message(open),
      "data file \"" + path +
          "\", offset 4: the file ends here, but it had 10 bytes when the run "
          "started");

  TextCorpus again({folder.path()});
  fs::remove(path);
  EXPECT_EQ(text_of(again, 0, 10), "0123456789");
  EXPECT_EQ(
      fixtures::message_of<DataError>([&] { text_of(again, 10, 3); }),
      "data file \"" + path + "\", offset 0: No such file or directory");
}

TEST(TextCorpus, NoticesAFileWrittenAnew) {
  const fixtures::TempFolder folder;
  const std::string path = folder.write("a", "0123456789");
  TextCorpus corpus({path});
  folder.write("a", "abcdefghij");
  fs::last_write_time(path, fs::file_time_type::clock::now());
  EXPECT_THAT(
      fixtures::message_of<DataError>([&] { all_text(corpus); }),
      HasSubstr("changed after the run started"));
}

TEST(TextCorpus, FingerprintTellsNamesAndSizes) {
  const fixtures::TempFolder folder;
  const std::string a = folder.write("a", "12");
  const std::string b = folder.write("b", "3");
  const uint64_t first = TextCorpus({a, b}).fingerprint();
  EXPECT_EQ(TextCorpus({a, b}).fingerprint(), first);
  EXPECT_NE(TextCorpus({b, a}).fingerprint(), first);
  EXPECT_NE(TextCorpus({a}).fingerprint(), first);
  folder.write("b", "33");
  EXPECT_NE(TextCorpus({a, b}).fingerprint(), first);
}

} // namespace
} // namespace weft::data
