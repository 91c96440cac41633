// What programs do where their parent leaves them closed streams, low limits or
// no working directory: one sentence and its exit code, and whole files.

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ClosedStreams : public ProcessTest {
 protected:
  /// What `words` ends with, started by a shell that closes streams first.
  int run(const Words& words, const std::string& closing) const {
    Words shell{"/bin/sh", "-c", "exec \"$0\" \"$@\" " + closing};
    shell.insert(shell.end(), words.begin(), words.end());
    Process process(shell, folder_);
    return process.wait().value_or(-1);
  }

  void expect_whole_run(const std::string& output) const {
    int steps = 0;
    for (const auto& line :
         lines_of(test::read_text(folder_ / output / "metrics.jsonl"))) {
      const auto record = nlohmann::json::parse(line, nullptr, false);
      ASSERT_TRUE(record.is_object()) << output << ": " << line;
      steps += record.contains("loss") ? 1 : 0;
    }
    EXPECT_EQ(steps, 4) << output;
    Process verify({WEFT_WEFT, "checkpoint", "verify", output}, folder_);
    EXPECT_EQ(verify.wait(), 0) << verify.error();
  }
};

TEST_F(ClosedStreams, TakeNothingOfWhatARunPrints) {
  int count = 0;
  for (const std::string closing :
       {"<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"}) {
    SCOPED_TRACE(closing);
    const auto output = "run-" + std::to_string(++count);
    const auto words = train(
        {"mesh.dp=1",
         "mesh.tp=1",
         "train.steps=4",
         "checkpoint.every=1",
         "output_dir=" + output});
    EXPECT_EQ(run(words, closing), 0);
    expect_whole_run(output);
  }
  // Under weftrun, which opens them for its workers, too.
  const auto words = launched(
      2,
      train(
          {"mesh.dp=2",
           "mesh.tp=1",
           "train.steps=4",
           "checkpoint.every=1",
           "output_dir=launched"}));
  EXPECT_EQ(run(words, "<&- >&- 2>&-"), 0);
  expect_whole_run("launched");
}

class Limits : public ProcessTest {
 protected:
  struct Result {
    int code;
    std::string output;
    std::string error;
  };

  /// `words` from a shell that first runs `before`.
  Result run(const std::string& before, const Words& words) const {
    Words shell{"/bin/sh", "-c", before + "; exec \"$0\" \"$@\""};
    shell.insert(shell.end(), words.begin(), words.end());
    Process process(shell, folder_);
    const int code = process.wait().value_or(-1);
    return {code, process.output(), process.error()};
  }
};

TEST_F(Limits, AFileSizeLimitFailsASaveAndNotTheRun) {
  const auto words = train(
      {"mesh.dp=1",
       "mesh.tp=1",
       "train.steps=4",
       "checkpoint.every=2",
       "model.ffn_dim=1000",
       "output_dir=out"});
  const auto [code, output, error] = run("ulimit -f 64", words);
  EXPECT_EQ(code, 4) << output << error; // The last step could not be saved.
  EXPECT_THAT(output, HasSubstr("step 2 was not saved"));
  EXPECT_THAT(output, HasSubstr("(ulimit -f is 32 KiB): File too large"));
  EXPECT_THAT(output, HasSubstr("step 4 was not saved"));
  EXPECT_THAT(error, HasSubstr("ERROR 4 rank=0"));
  // With room again it goes on.
  EXPECT_EQ(run("true", words).code, 0);
}

TEST_F(Limits, SharedMemoryIsRefusedByTheLimitsName) {
  const auto words =
      launched(2, train({"mesh.dp=2", "mesh.tp=1", "output_dir=out"}));
  const auto [code, output, error] = run("ulimit -f 8", words);
  EXPECT_NE(code, 0);
  EXPECT_THAT(output + error, HasSubstr("File too large (ulimit -f is "));
}

TEST_F(Limits, TooFewOpenFilesAreRefusedBeforeTheStart) {
  const auto words =
      launched(2, train({"mesh.dp=2", "mesh.tp=1", "output_dir=out"}));
  const auto [code, output, error] = run("ulimit -n 40", words);
  EXPECT_EQ(code, 2) << output << error;
  EXPECT_THAT(error, HasSubstr("the limit of open files (ulimit -n) is 40"));
}

TEST_F(Limits, AnAnswerThatCannotBeWrittenIsAnError) {
  EXPECT_EQ(run("true", train({"output_dir=out"})).code, 0);
  for (const auto& words :
       {Words{WEFT_WEFT, "--version"},
        Words{WEFT_WEFT, "doctor"},
        Words{WEFT_WEFT, "checkpoint", "ls", "out", "--json"},
        Words{WEFT_WEFT, "checkpoint", "inspect", "out"},
        Words{WEFT_WEFT, "checkpoint", "diff", "out", "out", "--json"}}) {
    const auto [code, output, error] = run("exec >/dev/full", words);
    EXPECT_EQ(code, 2) << words.back() << error;
    EXPECT_THAT(error, HasSubstr("cannot write to stdout")) << words.back();
  }
  // What a run says is in its files, too.
  EXPECT_EQ(
      run("exec >/dev/full", train({"output_dir=out", "train.steps=8"})).code,
      0);
}

// A run that resumes replaces it whole, or not at all.
TEST_F(Limits, ARecipeThatCannotBeReplacedStays) {
  EXPECT_EQ(run("true", train({"output_dir=out", "train.steps=4"})).code, 0);
  const auto before = test::read_text(folder_ / "out/recipe.yaml");
  const auto [code, output, error] =
      run("ulimit -f 1", train({"output_dir=out", "train.steps=5"}));
  EXPECT_EQ(code, 4) << "the last checkpoint does not fit: " << error;
  EXPECT_THAT(
      output + error,
      HasSubstr("cannot write \"out/recipe.yaml\": File too large (ulimit -f"));
  EXPECT_EQ(test::read_text(folder_ / "out/recipe.yaml"), before);
}

TEST_F(Limits, NumbersDoNotDependOnTheLocaleOfTheProgram) {
  write("faulty.yaml", R"(name: locale
model: {type: faulty, options: {width: 1200}}
data: {paths: [corpus.txt], sequence_length: 16}
train: {steps: 2, global_batch_size: 8}
eval: {batches: 0}
)");
  const auto start = [&](const std::string& override) {
    return run(
        "export WEFT_LOCALE=1",
        {WEFT_FAULTY, "train", "faulty.yaml", override, "output_dir=out"});
  };
  const auto [code, output, error] = start("optimizer.lr=2.5e-3");
  EXPECT_EQ(code, 0) << output << error;
  const auto recipe = test::read_text(folder_ / "out" / "recipe.yaml");
  EXPECT_THAT(recipe, HasSubstr("width: 1200"));
  EXPECT_THAT(recipe, HasSubstr("0.0025"));
  const auto refused = start("train.micro_batch_size=4001");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.error, HasSubstr("4001"));
}

TEST_F(Limits, ARemovedWorkingDirectoryIsOneSentence) {
  const std::string gone = "mkdir gone; cd gone; rmdir ../gone";
  for (const auto& words :
       {Words{WEFT_WEFT, "--version"},
        Words{WEFT_WEFT, "checkpoint", "ls", folder_.string()},
        train({}, (folder_ / "tiny.yaml").string()),
        launched(2, train({}, (folder_ / "tiny.yaml").string()))}) {
    const auto [code, output, error] = run(gone, words);
    EXPECT_EQ(code, 2) << words.back();
    EXPECT_EQ(output, "");
    EXPECT_THAT(
        lines_of(error),
        ElementsAre(AllOf(
            StartsWith("ERROR 2 rank=0 op="),
            HasSubstr("the working directory has been removed"))));
  }
}

// ---- a table of all of it ---------------------------------------------------

/// What a parent leaves, and what three programs end with there: `weft train`,
/// `weft checkpoint ls`, and weftrun with two ranks that train.
struct Surroundings {
  /// What a shell runs before it becomes the program.
  std::string before;
  int train = 0;
  int list = 0;
  int launched = 0;
  /// In one line of what those print that do not end with 0.
  std::string sentence = {};
  /// The output folder of the training, instead of a folder here.
  std::string output_dir = {};
};

const std::vector<Surroundings>& all_surroundings() {
  static const std::vector<Surroundings> all = {
      {.before = "true"},
      {.before = "exec <&-"},
      {.before = "exec >&- 2>&-"},
      {.before = "exec <&- >&- 2>&-"},
      {.before = "exec >/dev/full",
       .list = 2,
       .sentence = "cannot write to stdout: No space left on device"},
      {.before = "exec 2>/dev/full"},
      {.before = "ulimit -f 32",
       .train = 4,
       .launched = 150,
       .sentence = "(ulimit -f is 16 KiB)"},
      {.before = "ulimit -n 20",
       .launched = 2,
       .sentence = "(ulimit -n) is 20, and a rank needs 64 or more"},
      {.before = "ulimit -n 70"},
      // The loader says which library found no room.
      {.before = "ulimit -v 300000",
       .train = 127,
       .list = 127,
       .launched = 127,
       .sentence = "error while loading shared libraries"},
      {.before = "mkdir gone; cd gone; rmdir ../gone",
       .train = 2,
       .list = 2,
       .launched = 2,
       .sentence = "the working directory has been removed"},
      {.before = "true",
       .train = 2,
       .launched = 2,
       .sentence = "output_dir",
       .output_dir = "/proc/weft"},
      {.before = "export TMPDIR=/nonexistent",
       .launched = 2,
       .sentence = "log folder /nonexistent/"},
      {.before = "export HOME=/nonexistent"},
      {.before = "export LC_ALL=de_DE.UTF-8"},
      {.before = "export LC_ALL=no_SUCH LANG=no_SUCH"}};
  return all;
}

class ProcessEnvironment : public Limits {
 protected:
  Words trains(int ranks, const std::string& output) const {
    return train(
        {"mesh.dp=" + std::to_string(ranks),
         "mesh.tp=1",
         "train.steps=4",
         "checkpoint.every=2",
         "model.ffn_dim=1000",
         "output_dir=" + output},
        (folder_ / "tiny.yaml").string());
  }

  void check(
      const Surroundings& around,
      int expected,
      const Words& words,
      const std::string& output) {
    SCOPED_TRACE(around.before + "; " + words[0] + " " + words[1]);
    const auto [code, out, error] = run(around.before, words);
    EXPECT_EQ(code, expected) << out << error;
    if (code != 0) {
      ++refused_;
      int said = 0;
      for (const auto& line : lines_of(out + error)) {
        said += line.find(around.sentence) != std::string::npos ? 1 : 0;
      }
      EXPECT_GE(said, 1) << out << error;
    } else {
      ++right_;
    }
    // Whatever became of it, no file is half.
    const auto metrics = folder_ / output / "metrics.jsonl";
    if (fs::exists(metrics)) {
      int steps = 0;
      for (const auto& line : lines_of(test::read_text(metrics))) {
        const auto record = nlohmann::json::parse(line, nullptr, false);
        ASSERT_TRUE(record.is_object()) << line;
        steps += record.contains("loss") ? 1 : 0;
      }
      EXPECT_TRUE(steps == 4 || code != 0) << steps;
    }
    if (!output.empty() && code == 0) {
      const auto verified =
          run("true", {WEFT_WEFT, "checkpoint", "verify", output});
      EXPECT_EQ(verified.code, 0) << verified.error;
    }
  }

  int right_ = 0;
  int refused_ = 0;
};

TEST_F(ProcessEnvironment, IsAllRightOrRefusedInASentence) {
  ASSERT_EQ(run("true", trains(1, "saved")).code, 0);
  const auto saved = (folder_ / "saved").string();
  int count = 0;
  for (const auto& around : all_surroundings()) {
    const auto output_of = [&](const char* program) {
      return around.output_dir.empty()
                 ? (folder_ / (program + std::to_string(count))).string()
                 : around.output_dir;
    };
    const auto alone = output_of("alone");
    check(around, around.train, trains(1, alone), alone);
    check(around, around.list, {WEFT_WEFT, "checkpoint", "ls", saved}, "");
    const auto both = output_of("both");
    check(around, around.launched, launched(2, trains(2, both)), both);
    ++count;
  }
  EXPECT_EQ(right_, 35);
  EXPECT_EQ(refused_, 13);
}

} // namespace
} // namespace weft::test
