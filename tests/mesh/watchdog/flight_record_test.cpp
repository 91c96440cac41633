#include "mesh/watchdog/flight_record.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mesh/watchdog/flight_files.h"
#include "mesh/watchdog/plain_pickle.h"
#include "tests/support/temp_folder.h"

namespace weft::mesh {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t steady_ns() {
  return std::chrono::nanoseconds(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A call of 4 x 8 floats, `order` ms after the first of all, that took 1 ms.
FlightRecorderEntry call_of(const std::string& op, int64_t order) {
  FlightRecorderEntry call;
  call.op = op;
  call.name = "layers." + std::to_string(order) + ".weight";
  call.shape = {4, 8};
  call.bytes = 4 * 8 * 4;
  call.start_ns = 1'000'000'000 + order * 1'000'000;
  call.end_ns = call.start_ns + 1'000'000;
  return call;
}

GroupRecord group_of(
    const std::string& name,
    const std::vector<int64_t>& ranks) {
  GroupRecord group;
  group.name = name;
  group.backend = "shm";
  group.ranks = ranks;
  group.timeout = std::chrono::seconds(30);
  return group;
}

FlightRecorderEntry& add(GroupRecord& group, FlightRecorderEntry call) {
  call.sequence = group.next_sequence++;
  group.entries.push_back(std::move(call));
  return group.entries.back();
}

class FlightRecord : public ::testing::Test {
 protected:
  test::TempFolder folder_;
};

TEST_F(FlightRecord, HasPyTorchsKeys) {
  auto group = group_of("tp/1", {2, 3});
  add(group, call_of("all_reduce", 0));
  add(group, call_of("all_reduce", 1)).end_ns = 0;
  const auto record = Json::parse(flight_record({group}, 3));
  EXPECT_EQ(record.at("version"), "2.10");
  EXPECT_EQ(record.at("rank"), 3);
  EXPECT_EQ(
      record.at("pg_config").at("tp/1"),
      Json({
          {"name", "tp/1"},
          {"desc", "tp"},
          {"ranks", "[2, 3]"},
          {"backend", "shm"},
      }));
  const auto& status = record.at("pg_status").at("0");
  EXPECT_EQ(status.at("last_started_collective"), 1);
  EXPECT_EQ(status.at("last_completed_collective"), 0);
  ASSERT_EQ(record.at("entries").size(), 2U);
  const auto& call = record.at("entries").at(1);
  EXPECT_EQ(call.at("profiling_name"), "gloo:all_reduce");
  EXPECT_EQ(call.at("process_group"), Json({"tp/1", "tp"}));
  EXPECT_EQ(call.at("collective_seq_id"), 1);
  EXPECT_EQ(call.at("record_id"), 1);
  EXPECT_EQ(call.at("input_sizes"), Json::parse("[[4, 8]]"));
  EXPECT_EQ(call.at("output_dtypes"), Json::parse("[\"Float\"]"));
  EXPECT_EQ(call.at("state"), "started");
  EXPECT_EQ(call.at("timeout_ms"), 30000);
  EXPECT_FALSE(call.contains("duration_ms"));
  EXPECT_TRUE(call.at("time_discovered_completed_ns").is_null());
  EXPECT_EQ(call.at("frames").at(0).at("name"), "layers.1.weight");
  EXPECT_EQ(call.at("frames").at(0).at("filename"), "all_reduce in group tp/1");
  EXPECT_DOUBLE_EQ(record.at("entries").at(0).at("duration_ms"), 1.0);
}

TEST_F(FlightRecord, TimesAreOfTheWallClock) {
  auto group = group_of("world", {0, 1});
  auto& call = add(group, call_of("all_reduce", 0));
  call.start_ns = steady_ns();
  call.end_ns = 0;
  const int64_t now = std::chrono::nanoseconds(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  const auto record = Json::parse(flight_record({group}, 0));
  const int64_t created = record.at("entries").at(0).at("time_created_ns");
  EXPECT_NEAR(static_cast<double>(created - now), 0, 1e9);
}

TEST_F(FlightRecord, RanksThatForgotDifferentCallsAreComparedFromOneNumber) {
  auto dp = group_of("dp/0", {0, 2});
  auto tp = group_of("tp/0", {0, 1});
  for (int64_t i = 0; i < 6; ++i) {
    add(i % 2 == 0 ? dp : tp, call_of("all_reduce", i));
  }
  dp.entries.erase(dp.entries.begin()); // and tp call 1 with it
  const auto entries = Json::parse(flight_record({dp, tp}, 0)).at("entries");
  std::vector<int64_t> ids;
  std::vector<std::string> names;
  for (const auto& entry : entries) {
    ids.push_back(entry.at("record_id"));
    names.push_back(entry.at("frames").at(0).at("name"));
  }
  EXPECT_THAT(ids, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(
      names,
      ElementsAre(
          "layers.2.weight",
          "layers.3.weight",
          "layers.4.weight",
          "layers.5.weight"));
}

TEST_F(FlightRecord, SizesOfUnequalPartsAreThoseOfTheWhole) {
  auto group = group_of("tp/0", {0, 1});
  auto call = call_of("all_gather_uneven", 0);
  call.shape = {3};
  call.bytes = 5 * 4;
  add(group, call);
  call = call_of("all_to_all", 1);
  call.parts = {1, 2, 3, 4};
  add(group, call);
  add(group, call_of("barrier", 2)).bytes = 0;
  const auto entries = Json::parse(flight_record({group}, 0)).at("entries");
  EXPECT_EQ(entries.at(0).at("profiling_name"), "gloo:all_gather_v");
  EXPECT_EQ(entries.at(0).at("input_sizes"), Json::parse("[[5]]"));
  EXPECT_EQ(entries.at(0).at("weft").at("shape"), Json::parse("[3]"));
  EXPECT_EQ(entries.at(1).at("input_sizes"), Json::parse("[[3]]"));
  EXPECT_EQ(entries.at(1).at("output_sizes"), Json::parse("[[7]]"));
  EXPECT_EQ(entries.at(2).at("input_sizes"), Json::array());
}

TEST_F(FlightRecord, AnyBytesOfANameLeaveReadableJson) {
  auto group = group_of("world", {0, 1});
  add(group, call_of("all_reduce", 0)).name = "bad\xff \"name\"\n";
  const auto entries = Json::parse(flight_record({group}, 0)).at("entries");
  EXPECT_THAT(
      entries.at(0).at("weft").at("name").get<std::string>(),
      AllOf(HasSubstr("bad"), HasSubstr("\"name\"\n")));
}

TEST_F(FlightRecord, GroupsOfOneNameAreToldApart) {
  const auto record = Json::parse(
      flight_record({group_of("dp", {0, 1}), group_of("dp", {0, 2})}, 0));
  EXPECT_TRUE(record.at("pg_config").contains("dp"));
  EXPECT_EQ(record.at("pg_config").at("dp#2").at("ranks"), "[0, 2]");
}

TEST_F(FlightRecord, FilesAreWholeAndForTheOwner) {
  const auto group = group_of("world", {0, 1});
  const auto files =
      write_flight_record({group}, 7, folder_ / "new folder" / "rank_");
  EXPECT_EQ(files.trace, folder_ / "new folder" / "rank_7");
  EXPECT_EQ(files.json, folder_ / "new folder" / "rank7.json");
  EXPECT_EQ(
      bytes_of(files.trace), plain_pickle(Json::parse(bytes_of(files.json))));
  struct stat status {};
  ASSERT_EQ(stat(files.trace.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600);
  write_flight_record({group}, 7, folder_ / "new folder/"); // again, the same
  EXPECT_EQ(
      std::distance(
          fs::directory_iterator(folder_ / "new folder"),
          fs::directory_iterator()),
      2);
  EXPECT_EQ(
      write_flight_record({group}, 7, folder_ / "trace").json,
      folder_ / "7.json");
}

TEST_F(FlightRecord, AFolderThatCannotBeMadeIsNamed) {
  std::ofstream(folder_ / "file") << "in the way";
  try {
    write_flight_record({}, 0, folder_ / "file" / "rank_");
    FAIL() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("file"));
  }
}

TEST(FlightRecordPrefix, ComesFromPyTorchsVariables) {
  setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/old/rank_", 1);
  EXPECT_EQ(flight_record_prefix(), "/old/rank_");
  setenv("TORCH_FR_DUMP_TEMP_FILE", "/new/rank_", 1);
  EXPECT_EQ(flight_record_prefix(), "/new/rank_");
  EXPECT_EQ(flight_record_prefix("/own/rank_"), "/own/rank_");
  unsetenv("TORCH_FR_DUMP_TEMP_FILE");
  unsetenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE");
  EXPECT_EQ(flight_record_prefix(), "");
}

TEST(PlainPickle, IsWhatPythonWouldLoad) {
  EXPECT_EQ(
      plain_pickle({{"a", {1, true, nullptr}}}),
      std::string(
          "\x80\x02}(X\x01\x00\x00\x00"
          "a](\x8a\x08\x01\x00\x00\x00\x00\x00\x00\x00\x88Neu.",
          27));
  EXPECT_EQ(
      plain_pickle(1.5),
      std::string("\x80\x02G?\xf8\x00\x00\x00\x00\x00\x00.", 12));
}

} // namespace
} // namespace weft::mesh
