// What PyTorch's own analyzer reads in flight records: bench/peer/
// flight_records.py runs it, where `make peer` has made an environment for it.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mesh/watchdog/flight_files.h"
#include "tests/support/temp_folder.h"

namespace weft::mesh {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kAnalyzedRanks = 4;

/// All groups of one rank of a dp=2 x tp=2 mesh, with `steps` steps in them.
class RankOfMesh {
 public:
  explicit RankOfMesh(int64_t rank) : rank_(rank) {
    make("world", {0, 1, 2, 3});
    make("dp/" + std::to_string(rank % 2), {rank % 2, rank % 2 + 2});
    make("tp/" + std::to_string(rank / 2), {rank / 2 * 2, rank / 2 * 2 + 1});
  }

  void step() {
    call(0, "broadcast", "tokens");
    call(2, "all_gather", "layers.0.wq.weight");
    call(2, "reduce_scatter", "layers.0.wo.weight");
    call(2, "all_gather_uneven", "embedding").shape = {rank_ + 1};
    call(2, "all_to_all", "experts");
    call(1, "all_reduce", "layers.0.wq.weight.grad");
    call(1, "all_reduce_coalesced", "bucket 0");
    call(1, "all_gather_coalesced", "bucket 1");
    call(1, "reduce_scatter_coalesced", "bucket 2");
    call(2, "reduce_scatter_uneven", "head");
    call(1, "broadcast_coalesced", "buffers");
    call(0, "barrier", "").bytes = 0;
  }

  FlightRecorderEntry&
  call(size_t group, const std::string& op, const std::string& name) {
    FlightRecorderEntry entry;
    entry.sequence = groups_[group].next_sequence++;
    entry.op = op;
    entry.name = name;
    entry.shape = {4, 8};
    entry.bytes = 4 * 8 * 4 * (op == "all_gather" ? 2 : 1);
    entry.start_ns = now_ += 1000;
    entry.end_ns = now_ + 500;
    return groups_[group].entries.emplace_back(std::move(entry));
  }

  void write(const fs::path& folder) const {
    write_flight_record(groups_, rank_, folder / "rank_");
  }

 private:
  void make(const std::string& name, const std::vector<int64_t>& ranks) {
    GroupRecord group;
    group.name = name;
    group.backend = "shm";
    group.ranks = ranks;
    groups_.push_back(std::move(group));
  }

  int64_t rank_;
  int64_t now_ = 1'000'000'000;
  std::vector<GroupRecord> groups_;
};

/// What happens after three good steps.
struct Ending {
  const char* name;
  std::function<void(RankOfMesh&, int64_t rank)> calls;
};

const std::vector<Ending>& endings() {
  static const std::vector<Ending> kEndings{
      {"complete", [](RankOfMesh&, int64_t) {}},
      {"absent",
       [](RankOfMesh& self, int64_t rank) {
         if (rank != 3) {
           self.call(0, "all_reduce", "grad norm").end_ns = 0;
         }
       }},
      {"first absent",
       [](RankOfMesh& self, int64_t rank) {
         if (rank != 0) {
           self.call(0, "all_reduce", "grad norm").end_ns = 0;
         }
       }},
      {"op",
       [](RankOfMesh& self, int64_t rank) {
         const char* op = rank == 2 ? "broadcast" : "all_reduce";
         self.call(1, op, "layers.1.w2.weight").end_ns = 0;
       }},
      {"shape",
       [](RankOfMesh& self, int64_t rank) {
         auto& call = self.call(0, "all_reduce", "layers.1.norm.weight");
         call.shape = {rank == 1 ? 7 : 8};
         call.end_ns = 0;
       }},
      {"dtype",
       [](RankOfMesh& self, int64_t rank) {
         auto& call = self.call(2, "all_reduce", "layers.1.w1.weight");
         call.dtype = rank == 3 ? at::kHalf : at::kFloat;
         call.end_ns = 0;
       }},
  };
  return kEndings;
}

/// What the analyzer found in a folder.
struct Finding {
  int64_t matched = 0;
  std::string said;
};

using Findings = std::map<std::string, Finding>;

/// By the endings' names.
Findings read_findings(const std::string& command) {
  Findings findings;
  const std::unique_ptr<FILE, int (*)(FILE*)> output(
      popen((command + " 2>&1").c_str(), "r"), pclose);
  std::string text;
  for (int byte = fgetc(output.get()); byte != EOF;
       byte = fgetc(output.get())) {
    text += static_cast<char>(byte);
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) {
      const fs::path folder = json.at("folder").get<std::string>();
      findings[folder.filename()] = {json.at("matched"), json.at("said")};
    }
  }
  EXPECT_EQ(findings.size(), endings().size()) << text;
  return findings;
}

/// Writes the records of all endings and has them analyzed.
Findings analyze_endings() {
  const test::TempFolder folder;
  const auto& root = folder.path();
  std::string command = std::string("'") + WEFT_PEER_PYTHON + "' '" +
                        WEFT_PEER_FOLDER + "/flight_records.py'";
  for (const auto& ending : endings()) {
    for (int64_t rank = 0; rank < kAnalyzedRanks; ++rank) {
      RankOfMesh self(rank);
      for (int step = 0; step < 3; ++step) {
        self.step();
      }
      ending.calls(self, rank);
      self.write(root / ending.name);
    }
    command += " '" + (root / ending.name).string() + "'";
  }
  auto findings = read_findings(command);
  return findings;
}

// 3 steps: 2 calls of the world, 5 of each tp group, 5 of each dp group.
constexpr int64_t kGoodCalls = 3 * (2 + 2 * 5 + 2 * 5);

void expect_nothing_found(const Findings& found) {
  const auto& finding = found.at("complete");
  EXPECT_EQ(finding.matched, kGoodCalls);
  EXPECT_THAT(
      finding.said,
      AllOf(
          Not(HasSubstr("Not all ranks")),
          Not(HasSubstr("has errors")),
          Not(HasSubstr("unrecognized"))));
}

void expect_absent_rank_named(const Findings& found) {
  const auto& finding = found.at("absent");
  EXPECT_EQ(finding.matched, kGoodCalls);
  EXPECT_THAT(
      finding.said,
      AllOf(
          HasSubstr("Not all ranks joining collective, sequence number: 6\n"),
          HasSubstr("group info: world:world\n"),
          HasSubstr("missing ranks: {3}\n"),
          HasSubstr("grad norm at all_reduce in group world:6\n")));
  EXPECT_THAT(found.at("first absent").said, HasSubstr("missing ranks: {0}\n"));
}

void expect_other_op_named(const Findings& found) {
  EXPECT_THAT(
      found.at("op").said,
      AllOf(
          HasSubstr("Collective sequence number: 15 has errors\n"),
          HasSubstr("group info: dp/0:dp\n"),
          HasSubstr("Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH, "
                    "Expected collective type: 'all_reduce' does not match "
                    "found collective type: 'broadcast'"),
          Not(HasSubstr("dp/1"))));
}

void expect_other_shape_named(const Findings& found) {
  EXPECT_THAT(
      found.at("shape").said,
      AllOf(
          HasSubstr("Culprit rank 1; Error type: SIZE_OR_SYNTAX_MISMATCH, "
                    "Expected input sizes: '[[8]]' does not match found input "
                    "sizes: '[[7]]'"),
          HasSubstr("layers.1.norm.weight at all_reduce in group world:6\n"),
          Not(HasSubstr("Culprit rank 2")),
          Not(HasSubstr("Culprit rank 3"))));
}

void expect_other_dtype_named(const Findings& found) {
  EXPECT_THAT(
      found.at("dtype").said,
      AllOf(
          HasSubstr("group info: tp/1:tp\n"),
          HasSubstr("Culprit rank 3; Error type: COLLECTIVE_DTYPE_MISMATCH"),
          Not(HasSubstr("tp/0"))));
}

// One test: libtorch's Python takes seconds to load.
TEST(FlightAnalyzer, NamesTheGuiltyRank) {
  if (!fs::exists(WEFT_PEER_PYTHON)) {
    GTEST_SKIP() << "no " << WEFT_PEER_PYTHON << ": make peer";
  }
  const auto found = analyze_endings();
  ASSERT_EQ(found.size(), endings().size());
  expect_nothing_found(found);
  expect_absent_rank_named(found);
  expect_other_op_named(found);
  expect_other_shape_named(found);
  expect_other_dtype_named(found);
}

} // namespace
} // namespace weft::mesh
