// Weft's side of bench/peer/checkpoint_exchange.py:
//
//   checkpoint_exchange_state save RUN DP TP
//   checkpoint_exchange_state load PATH DP TP [--consolidated]
//
// saves the tensors of tests/checkpoint/oracle/tensors.json as step 7 of RUN,
// or loads them from PATH, a step folder or files of other programs, on a mesh
// of DP x TP ranks, and compares them bitwise. Exit 1 if one differs.

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"
#include "checkpoint/transfer/describe_safetensors.h"
#include "tests/checkpoint/transfer/exchange_state.h"
#include "tests/support/run_ranks.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

void load_state(const fs::path& path, const checkpoint::StateDicts& state) {
  if (fs::is_directory(path) && fs::exists(path / checkpoint::kManifestName)) {
    checkpoint::load(path, state);
    return;
  }
  const auto folder = fs::is_directory(path) ? path : path.parent_path();
  const auto opened = checkpoint::Folder::open(folder);
  const auto manifest =
      fs::is_directory(path)
          ? checkpoint::describe_safetensors(opened)
          : checkpoint::describe_safetensors(opened, path.filename().string());
  checkpoint::load(folder, manifest, state);
}

void exchange(const std::vector<std::string>& words) {
  const bool is_save = words.at(0) == "save";
  const auto dp = std::stoll(words.at(2));
  const auto tp = std::stoll(words.at(3));
  auto tensors = exchange_tensors(WEFT_ORACLE);
  if (words.size() > 4 && words[4] == "--consolidated") {
    tensors = consolidable(std::move(tensors));
  }
  run_ranks(static_cast<int>(dp * tp), [&](RankContext& self) {
    const auto mesh = self.mesh({dp, tp}, {"dp", "tp"});
    const auto wanted = exchange_state(tensors, mesh, true);
    if (is_save) {
      checkpoint::SaveOptions options;
      options.step = 7;
      options.fsync = false;
      options.state = R"({"cursor": {"sample": 12}})";
      checkpoint::save(words.at(1), wanted, options);
      return;
    }
    const auto got = exchange_state(tensors, mesh, false);
    load_state(words.at(1), got);
    for (const auto& name : differing_parts(wanted, got)) {
      ADD_FAILURE() << name << " differs on rank " << self.rank;
    }
  });
}

} // namespace
} // namespace weft::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 4 || (words[0] != "save" && words[0] != "load")) {
    std::fputs(
        "checkpoint_exchange_state save|load PATH DP TP [--consolidated]\n",
        stderr);
    return 2;
  }
  try {
    weft::test::exchange(words);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return testing::UnitTest::GetInstance()->Failed() ? 1 : 0;
}
