#pragma once

// What tests that start the real programs share: a folder with a recipe and its
// text, command lines, and what a run left behind.

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/process.h"
#include "tests/support/temp_folder.h"

namespace weft::test {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;
using Metrics = std::vector<nlohmann::ordered_json>;

inline constexpr const char* kRecipe = R"(name: tiny
mesh: {dp: -1, tp: 1}
model: {dim: 48, layers: 1, heads: 12, kv_heads: 6, ffn_dim: 96}
data: {paths: [corpus.txt], sequence_length: 32}
train: {steps: 6, global_batch_size: 8, micro_batch_size: 2, log_every: 2}
optimizer: {lr: 1.0e-2}
eval: {every: 4, batches: 2}
)";

inline std::string
replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// `command` on `ranks` ranks.
inline Words launched(int ranks, const Words& command) {
  Words words{WEFT_WEFTRUN, "--nproc-per-node", std::to_string(ranks), "--"};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

inline Words train(
    const Words& overrides,
    const std::string& recipe = "tiny.yaml",
    const std::string& program = WEFT_WEFT) {
  Words words{program, "train", recipe};
  words.insert(words.end(), overrides.begin(), overrides.end());
  return words;
}

/// What torchrun tells rank `rank` of `ranks`.
inline Process::Variables rank_variables(int rank, int ranks, int port) {
  return {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(ranks)},
      {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)}};
}

inline std::vector<double> losses(const Metrics& metrics) {
  std::vector<double> result;
  for (const auto& line : metrics) {
    result.push_back(line.at("loss"));
    if (line.contains("eval_loss")) {
      result.push_back(line.at("eval_loss"));
    }
  }
  return result;
}

/// A folder with a recipe and its text, where programs run.
class ProcessTest : public ::testing::Test {
 protected:
  ProcessTest() {
    std::string text;
    for (int i = 0; i < 2000; ++i) {
      text += "int value_" + std::to_string(i * 7919 % 1000) + " = " +
              std::to_string(i * i % 613) + ";\n";
    }
    write("corpus.txt", text);
    write("tiny.yaml", kRecipe);
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  Metrics metrics(const std::string& run = "outputs/tiny") const {
    return parse_metrics(metrics_text(run));
  }

  /// The metrics of a run that may be writing the next line.
  Metrics metrics_so_far(const std::string& run) const {
    const auto text = metrics_text(run);
    return parse_metrics(text.substr(0, text.rfind('\n') + 1));
  }

  std::string metrics_text(const std::string& run = "outputs/tiny") const {
    return test::read_text(folder_ / run / "metrics.jsonl");
  }

  /// Blocks until the run has done some steps.
  void wait_for_steps(Process& run) const {
    while (lines_of(metrics_text()).size() < 3) {
      ASSERT_FALSE(run.wait(std::chrono::seconds(0))) << run.error();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  void expect_success(const Words& words) const {
    Process run(words, folder_);
    EXPECT_EQ(run.wait(), 0) << run.output() << run.error();
    EXPECT_EQ(run.error(), "");
  }

  test::TempFolder temp_;
  const fs::path folder_ = temp_.path();

 private:
  static Metrics parse_metrics(const std::string& text) {
    Metrics result;
    for (const auto& line : lines_of(text)) {
      result.push_back(nlohmann::ordered_json::parse(line));
    }
    return result;
  }
};

} // namespace weft::test
