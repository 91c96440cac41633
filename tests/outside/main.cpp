// Runs each code block of the docs on 4 ranks in a folder of its own.
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>

#include <ATen/ops/ones.h>

#include <weft/testkit/run_ranks.h>

struct Snippet {
  const char* name;
  void (*run)(weft::testkit::RankContext&);
};

#include "blocks.inc"

/// Whether an exception on rank 2 ends the collective in which the others wait,
/// and is what run_ranks() reports.
bool one_failure_ends_all() {
  try {
    weft::testkit::run_ranks(4, [](weft::testkit::RankContext& rank) {
      // The others are in a collective then, not in the group's rendezvous.
      rank.world.group().all_reduce(at::ones({1})).wait();
      if (rank.rank == 2) {
        throw std::runtime_error("no batch");
      }
      rank.world.group().all_reduce(at::ones({1})).wait();
    });
  } catch (const weft::testkit::RankError& error) {
    return error.rank() == 2 && error.message() == "no batch" &&
           std::string(error.what()) == "rank 2 threw: no batch";
  }
  return false;
}

int main() {
  const auto root = std::filesystem::current_path() / "outside_files";
  int failed = 0;
  if (!one_failure_ends_all()) {
    ++failed;
    std::cout << "run_ranks(): FAILED" << std::endl;
  }
  for (const Snippet& snippet : kSnippets) {
    std::filesystem::remove_all(root);
    std::filesystem::create_directories(root);
    std::filesystem::current_path(root);
    try {
      weft::testkit::run_ranks(4, snippet.run);
      std::cout << snippet.name << ": ran" << std::endl;
    } catch (const std::exception& error) {
      ++failed;
      std::cout << snippet.name << ": FAILED: " << error.what() << std::endl;
    }
    std::filesystem::current_path(root.parent_path());
  }
  std::filesystem::remove_all(root);
  return failed == 0 ? 0 : 1;
}
