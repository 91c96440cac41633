// Programs whose standard streams the caller has closed: what they print goes
// nowhere, least of all into files that they open.

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

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
         lines_of(read_text(folder_ / output / "metrics.jsonl"))) {
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

} // namespace
} // namespace weft::test
