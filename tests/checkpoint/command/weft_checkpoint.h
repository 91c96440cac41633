#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/store/store.h"
#include "tests/checkpoint/sample.h"
#include "tests/integration/process.h"
#include "tests/support/temp_folder.h"

namespace weft::test {

/// How a program ended.
struct Said {
  std::optional<int> code;
  std::string output;
  std::string error;
  std::string last_error_line;

  /// The one line of --json.
  nlohmann::json parsed() const {
    EXPECT_EQ(code, 0) << error;
    EXPECT_EQ(lines_of(output).size(), 1) << output;
    return nlohmann::json::parse(output);
  }
};

/// `weft checkpoint` in a folder of its own, with a run of three steps: 10, 20
/// and 30, whose samples have the same seeds.
class WeftCheckpoint : public ::testing::Test {
 protected:
  WeftCheckpoint() {
    for (const int64_t step : {10, 20, 30}) {
      SampleOptions options;
      options.step = step;
      options.grid = {2, 2};
      write_sample(
          checkpoints(), sample_tensors(static_cast<uint64_t>(step)), options);
    }
  }

  std::filesystem::path at(const std::string& name) const {
    return scratch_.path() / name;
  }
  std::filesystem::path checkpoints() const {
    return at("run") / "checkpoints";
  }
  std::filesystem::path step(int64_t n) const {
    return checkpoint::step_path(checkpoints(), n);
  }

  Said run(std::vector<std::string> words) const {
    Process process(std::move(words), scratch_.path());
    const auto code = process.wait();
    return {code, process.output(), process.error(), process.last_error_line()};
  }
  Said call(const std::vector<std::string>& words) const {
    std::vector<std::string> all = {WEFT_WEFT, "checkpoint"};
    all.insert(all.end(), words.begin(), words.end());
    return run(std::move(all));
  }
  // The one line that a refusal is.
  void expect_refused(
      const std::vector<std::string>& words,
      int code,
      const std::string& text) const {
    const auto said = call(words);
    SCOPED_TRACE(::testing::PrintToString(words));
    EXPECT_EQ(said.code, code) << said.error;
    EXPECT_EQ(said.output, "");
    EXPECT_THAT(
        said.last_error_line,
        ::testing::AllOf(
            ::testing::StartsWith(
                "ERROR " + std::to_string(code) + " rank=0 op="),
            ::testing::HasSubstr(text)));
  }
  void expect_equal_steps(const std::string& a, const std::string& b) const {
    const auto said = call({"diff", a, b, "--json"});
    EXPECT_EQ(said.code, 0) << said.output << said.error;
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> found;
    for (const auto& each : checkpoint::list_steps(checkpoints())) {
      found.push_back(each.step);
    }
    return found;
  }

  test::TempFolder scratch_;
};

} // namespace weft::test
