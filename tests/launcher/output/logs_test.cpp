// Where workers' output goes with --redirects, --tee and their like.
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/output/output.h"
#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

/// The attempt's folder of the only run that logged to `folder`.
fs::path attempt(const fs::path& folder) {
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(folder)) {
    runs.push_back(entry.path());
  }
  EXPECT_EQ(runs.size(), 1);
  return runs.at(0) / "attempt_0";
}

mode_t mode(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 0777;
}

const std::string kSpeak =
    "echo \"out $RANK\"; echo \"err $RANK\" >&2; printf last";

TEST(Logs, RedirectsGoToFilesAlone) {
  const test::TempFolder folder;
  WeftrunProcess run(shell(
      2,
      kSpeak,
      {"--redirects=3", "--log-dir", folder / "a/b", "--rdzv-id=x/y"}));
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_EQ(run.output(), "");
  EXPECT_EQ(run.error(), "");
  const fs::path logs = attempt(folder / "a/b");
  EXPECT_THAT(logs.parent_path().filename(), StartsWith("x_y_"));
  EXPECT_EQ(read_file(logs / "0/stdout.log"), "out 0\nlast");
  EXPECT_EQ(read_file(logs / "1/stderr.log"), "err 1\n");
  EXPECT_EQ(mode(logs / "1/stderr.log"), 0600);
  EXPECT_EQ(mode(logs / "1"), 0700);
  EXPECT_EQ(mode(folder / "a"), 0700);
}

TEST(Logs, TeeGoesToFilesAndPrefixedToTheConsole) {
  const test::TempFolder folder;
  WeftrunProcess run(shell(
      2, kSpeak, {"-t", "3", "--log-dir", folder.path(), "--role=trainer"}));
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(
      lines_of(run.output()),
      UnorderedElementsAre(
          "[trainer0]:out 0",
          "[trainer0]:last",
          "[trainer1]:out 1",
          "[trainer1]:last"));
  EXPECT_THAT(
      lines_of(run.error()),
      UnorderedElementsAre("[trainer0]:err 0", "[trainer1]:err 1"));
  EXPECT_EQ(read_file(attempt(folder.path()) / "1/stdout.log"), "out 1\nlast");
  EXPECT_EQ(read_file(attempt(folder.path()) / "0/stderr.log"), "err 0\n");
}

TEST(Logs, LinesThatMatchAreCopiedForAllRanks) {
  const test::TempFolder folder;
  WeftrunProcess run(shell(
      3,
      "echo \"loss $RANK\"; echo other; echo 'a,b' >&2; echo 'a b' >&2; "
      "printf 'last loss'",
      {"--tee=3",
       "--local-ranks-filter=0,2",
       "--log-dir",
       folder.path(),
       "--duplicate-stdout-filters=loss,nothing",
       "--duplicate_stderr_filters=a,,b"}));
  EXPECT_EQ(run.wait(), 0) << run.error();
  const fs::path logs = attempt(folder.path());
  EXPECT_THAT(
      lines_of(read_file(logs / "filtered_stdout.log")),
      UnorderedElementsAre(
          "[default0]:loss 0",
          "[default0]:last loss",
          "[default2]:loss 2",
          "[default2]:last loss"));
  EXPECT_THAT(
      lines_of(read_file(logs / "filtered_stderr.log")),
      UnorderedElementsAre("[default0]:a,b", "[default2]:a,b"));
  EXPECT_EQ(mode(logs / "filtered_stdout.log"), 0600);
  EXPECT_EQ(count(run.output(), "other\n"), 2);
}

TEST(Logs, EachRankMayHaveItsOwnStreams) {
  const test::TempFolder folder;
  WeftrunProcess run(
      shell(2, kSpeak, {"-r", "0:1,1:2", "--log-dir", folder.path()}));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.output(), "out 1\nlast");
  EXPECT_EQ(run.error(), "err 0\n");
  EXPECT_TRUE(fs::exists(attempt(folder.path()) / "0/stdout.log"));
  EXPECT_FALSE(fs::exists(attempt(folder.path()) / "0/stderr.log"));
}

TEST(Logs, TheFilterHidesRanksButNotTheirLastWords) {
  WeftrunProcess run(shell(
      2,
      kSpeak + "; echo mine >&2; exit $((RANK * 8))",
      {"--local-ranks-filter", "0"}));
  EXPECT_EQ(run.wait(), 8);
  EXPECT_EQ(run.output(), "out 0\nlast");
  EXPECT_THAT(run.error(), StartsWith("err 0\n"));
  EXPECT_THAT(run.error(), Not(HasSubstr("\nerr 1")));
  EXPECT_THAT(run.error(), HasSubstr("    | err 1\n    | mine\n"));
}

TEST(Logs, LastWordsAreFoundInARedirectedFile) {
  const test::TempFolder folder;
  WeftrunProcess run(shell(
      1,
      "seq 100000 >&2; echo 'ERROR 3 rank=0 op=loss nan' >&2; exit 3",
      {"-r3", "--log-dir", folder.path()}));
  EXPECT_EQ(run.wait(), 3);
  EXPECT_THAT(run.error(), HasSubstr("    | 100000\n"));
  EXPECT_THAT(
      run.error(), HasSubstr("  logs: " + folder.path().string() + "/none_"));
  EXPECT_EQ(run.last_error_line(), "ERROR 3 rank=0 op=loss nan");
}

TEST(Logs, AnErrorFileIsReported) {
  WeftrunProcess run(shell(
      1,
      "echo '{\"message\": \"the reason\"}' > $TORCHELASTIC_ERROR_FILE; "
      "exit 1"));
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.error(), HasSubstr("    | the reason\n"));
}

TEST(Logs, ATemporaryFolderGoesUnlessItHoldsLogs) {
  const test::TempFolder folder;
  const WeftrunProcess::Variables variables{{"TMPDIR", folder.path()}};
  WeftrunProcess plain(
      shell(1, "test -d ${TORCHELASTIC_ERROR_FILE%/*}"), variables);
  EXPECT_EQ(plain.wait(), 0);
  EXPECT_TRUE(fs::is_empty(folder.path()));
  WeftrunProcess teed(shell(1, "echo a", {"-t1"}), variables);
  EXPECT_EQ(teed.wait(), 0);
  EXPECT_FALSE(fs::is_empty(folder.path()));
}

TEST(Logs, AFileIsNoFolderForThem) {
  WeftrunProcess run(shell(1, "true", {"--log-dir=/dev/null"}));
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.error(), HasSubstr("--log-dir /dev/null is not a folder."));
  EXPECT_EQ(count(run.error(), "\n"), 1);
}

TEST(Logs, WorkersKeepTheirOwnUmask) {
  WeftrunProcess run(shell(1, "umask"));
  EXPECT_EQ(run.wait(), 0);
  const mode_t own = umask(0);
  umask(own);
  EXPECT_EQ(std::stoul(run.output(), nullptr, 8), own);
}

TEST(Logs, PrefixTemplatesAreExpanded) {
  EXPECT_EQ(
      expand_prefix("${role_name}/${rank}/${local_rank}> ", "w", 3, 7),
      "w/7/3> ");
  const test::TempFolder folder;
  WeftrunProcess run(
      shell(1, "echo a", {"-t1", "--log-dir", folder.path()}),
      {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${rank}> "}});
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.output(), "<0> a\n");
}

} // namespace
} // namespace weft::launcher
