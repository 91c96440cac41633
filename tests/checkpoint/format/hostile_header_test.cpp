#include <sys/resource.h>

#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/files/error.h"
#include "checkpoint/files/limits.h"
#include "checkpoint/format/tensor_header.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace weft::checkpoint {
namespace {

using test::message_of_thrown;
using ::testing::HasSubstr;

std::string with_length(const std::string& json) {
  std::string bytes(8, '\0');
  const uint64_t length = json.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json;
}

// A header of `json` in a file that has `data` bytes behind it.
TensorHeader parse(const std::string& json, int64_t data = 0) {
  const auto bytes = with_length(json);
  return parse_header(bytes, static_cast<int64_t>(bytes.size()) + data, "it");
}

std::string refused(const std::string& json, int64_t data = 0) {
  return message_of_thrown<CheckpointError>([&] { parse(json, data); });
}

std::string entry(
    const std::string& name,
    const std::string& shape,
    const std::string& offsets,
    const std::string& dtype = "F32") {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST(HostileHeader, WhatIsSoundIsRead) {
  const auto header = parse(
      "{" + entry("a", "[2,2]", "[0,16]") + "," + entry("b", "[]", "[16,20]") +
          "," + entry("c", "[0]", "[20,20]") +
          R"(,"__metadata__":{"k":"v"}}   )",
      20);
  EXPECT_EQ(header.tensors.size(), 3);
  EXPECT_EQ(header.tensors.at("b").begin, header.bytes + 16);
  EXPECT_EQ(header.metadata.at("k"), "v");
  EXPECT_FALSE(header.tensors.at("a").offset);
}

TEST(HostileHeader, LengthsThatCannotBe) {
  const test::TempFolder scratch;
  const auto folder = Folder::open(scratch.path());
  const auto read = [&](uint64_t length, size_t file_bytes) {
    std::string bytes(std::max<size_t>(file_bytes, 8), ' ');
    std::memcpy(bytes.data(), &length, 8);
    bytes.resize(file_bytes);
    test::write_file(scratch.path() / "f", bytes);
    const auto file = folder.open_file("f");
    return read_header(file, "it");
  };
  for (const uint64_t length :
       {uint64_t{1} << 63,
        ~uint64_t{0},
        uint64_t{100'000'001},
        uint64_t{100'000'000},
        uint64_t{93}}) {
    EXPECT_THROW(read(length, 100), CheckpointError) << length;
  }
  EXPECT_EQ(read(92, 100).size(), 100);
  for (const size_t file_bytes : {0, 1, 7}) {
    EXPECT_THROW(read(0, file_bytes), CheckpointError) << file_bytes;
  }
  EXPECT_THROW(parse_header(read(0, 8), 8, "it"), CheckpointError);
}

TEST(HostileHeader, NotJson) {
  for (const std::string json :
       {"",
        " ",
        "{",
        "[]",
        "\"a\"",
        "{}{}",
        "{} x",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":{}",
        "\xef\xbb\xbf{}",
        "{\"\xff\":{}}",
        "{\"\xc0\xaf\":{}}",
        "{'a':1}",
        "{//\n}",
        "nul"}) {
    SCOPED_TRACE(json);
    EXPECT_THAT(refused(json), HasSubstr("byte"));
  }
  EXPECT_THAT(refused(std::string("{}\0  ", 5)), HasSubstr("NUL"));
  EXPECT_THAT(refused(std::string("{}\0{}", 5)), HasSubstr("NUL"));
}

TEST(HostileHeader, NumbersThatAreNone) {
  for (const std::string number :
       {"-1",
        "1.0",
        "1e2",
        "1e999",
        "-1e999",
        "9223372036854775808",
        "99999999999999999999999999",
        "true",
        "null",
        "\"1\"",
        "{}",
        "[[]]"}) {
    SCOPED_TRACE(number);
    refused("{" + entry("a", "[" + number + "]", "[0,4]") + "}", 4);
    refused("{" + entry("a", "[1]", "[0," + number + "]") + "}", 4);
    refused("{" + entry("a", number, "[0,4]") + "}", 4);
    refused("{" + entry("a", "[1]", number) + "}", 4);
  }
}

TEST(HostileHeader, RangesThatDoNotFit) {
  const auto two = [](const std::string& a, const std::string& b) {
    return "{" + entry("a", "[1]", a) + "," + entry("b", "[1]", b) + "}";
  };
  EXPECT_THAT(refused(two("[0,4]", "[0,4]"), 8), HasSubstr("overlap"));
  EXPECT_THAT(refused(two("[0,4]", "[8,12]"), 12), HasSubstr("gap"));
  EXPECT_THAT(refused(two("[4,8]", "[8,12]"), 12), HasSubstr("gap"));
  refused(two("[4,0]", "[4,8]"), 8); // ends before it begins
  refused(two("[0,4]", "[4,8]"), 9); // bytes behind it
  refused(two("[0,4]", "[4,8]"), 7); // cut off
  refused("{" + entry("a", "[1]", "[0,4,8]") + "}", 8);
  refused("{" + entry("a", "[1]", "[0]") + "}", 4);
  refused("{" + entry("a", "[2]", "[0,4]") + "}", 4);
  refused("{" + entry("a", "[1]", "[0,5]") + "}", 5);
  refused(
      "{" + entry("a", "[1]", "[9223372036854775803,9223372036854775807]") +
          "}",
      4);
  // A size of 0 does not excuse sizes that overflow, nor stand for bytes.
  refused("{" + entry("a", "[0,4294967296,4294967296]", "[0,0]") + "}");
  refused("{" + entry("a", "[4294967296,4294967296,4]", "[0,0]") + "}");
  refused("{" + entry("a", "[0]", "[0,4]") + "}", 4);
  refused(
      "{" + entry("a", "[1]", "[0,4]") + "," + entry("z", "[0]", "[2,2]") + "}",
      4);
}

TEST(HostileHeader, MembersAndNames) {
  EXPECT_THAT(
      refused("{" + entry("a", "[1]", "[0,4]", "F31") + "}", 4),
      HasSubstr("F31"));
  EXPECT_THAT(
      refused(
          "{" + entry("a", "[1]", "[0,4]") + "," + entry("a", "[1]", "[4,8]") +
              "}",
          8),
      HasSubstr("repeated"));
  refused(
      R"({"a":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}})",
      4);
  refused(R"({"a":{"dtype":"F32","shape":[]}})");
  refused(R"({"a":{"shape":[],"data_offsets":[0,4]}})", 4);
  refused(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4);
  refused(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":1}})", 4);
  refused(R"({"a":5})");
  refused(R"({"a":[]})");
  refused(R"({"__metadata__":{"k":1}})");
  refused(R"({"__metadata__":{"k":["v"]}})");
  refused(R"({"__metadata__":"v"})");
  refused(R"({"__metadata__":{},"__metadata__":{}})");
  refused("{" + entry("", "[1]", "[0,4]") + "}", 4);
  refused("{" + entry("a\\u0000b", "[1]", "[0,4]") + "}", 4);
  refused("{" + entry("a\\nb", "[1]", "[0,4]") + "}", 4);
  refused("{" + entry(std::string(513, 'a'), "[1]", "[0,4]") + "}", 4);
  parse("{" + entry(std::string(512, 'a'), "[1]", "[0,4]") + "}", 4);
  refused("{" + entry("a", "[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", 4);
  parse("{" + entry("a", "[1,1,1,1,1,1,1,1]", "[0,4]") + "}", 4);
}

TEST(HostileHeader, ShardingInfo) {
  const auto header = [](const std::string& info) {
    return "{" + entry("a", "[2]", "[0,8]") +
           R"(,"__metadata__":{"DCP_SHARDING_INFO":")" + info + "\"}}";
  };
  const auto sound = parse(
      header(R"({\"a\":{\"saved_offsets\":[4],\"global_shape\":[6]}})"), 8);
  EXPECT_EQ(sound.tensors.at("a").offset, std::vector<int64_t>{4});
  for (
      const std::string info :
      {R"()",
       R"(x)",
       R"([])",
       R"({\"b\":{\"saved_offsets\":[4]}})",
       R"({\"a\":5})",
       R"({\"a\":[4]})",
       R"({\"a\":{\"saved_offsets\":[]}})",
       R"({\"a\":{\"saved_offsets\":[0,0]}})",
       R"({\"a\":{\"saved_offsets\":[-1]}})",
       R"({\"a\":{\"saved_offsets\":[1.5]}})",
       R"({\"a\":{\"saved_offsets\":[\"4\"]}})",
       R"({\"a\":{\"saved_offsets\":[5],\"global_shape\":[6]}})",
       R"({\"a\":{\"saved_offsets\":[9223372036854775807],\"global_shape\":[6]}})",
       R"({\"a\":{\"global_shape\":[6]}})",
       R"({\"a\":{\"saved_offsets\":[4],\"global_shape\":[6,1]}})",
       R"({\"a\":{\"saved_offsets\":[4]},\"a\":{\"saved_offsets\":[4]}})"}) {
    SCOPED_TRACE(info);
    refused(header(info), 8);
  }
  parse(header(R"({\"a\":{\"saved_offsets\":[4],\"more\":{\"x\":[1]}}})"), 8);
}

TEST(HostileHeader, DepthCostsNothing) {
  constexpr size_t kMillion = 1'000'000;
  EXPECT_THAT(
      refused("{\"a\":" + std::string(kMillion, '[')), HasSubstr("expected"));
  std::string nested;
  for (size_t i = 0; i < kMillion; ++i) {
    nested += "{\"a\":";
  }
  refused(nested);
  const std::string escaped(kMillion, '[');
  refused(
      "{" + entry("a", "[2]", "[0,8]") +
          R"(,"__metadata__":{"DCP_SHARDING_INFO":"{\"a\":{\"more\":)" +
          escaped + "\"}}",
      8);
}

TEST(HostileHeader, TooManyKeys) {
  constexpr int64_t kMaxKib = 512 << 10;
  std::string json = "{\"__metadata__\":{";
  for (int64_t i = 0; i < 4 * limits::kOpenKeys; ++i) {
    json += "\"" + std::to_string(i) + "\":\"\",";
  }
  json.back() = '}';
  json += '}';
  ASSERT_LT(json.size(), 100'000'000);
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_THAT(refused(json), HasSubstr("more than 1100000 keys"));
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, kMaxKib);
}

TEST(HostileHeader, TooManyTensors) {
  std::string json = "{";
  for (int64_t i = 0; i <= limits::kTensors; ++i) {
    json += entry(std::to_string(i), "[0]", "[0,0]", "U8") += ',';
  }
  json.back() = '}';
  ASSERT_LT(json.size(), 100'000'000);
  EXPECT_THAT(refused(json), HasSubstr("1000000"));
}

TEST(HostileHeader, MutationsAreReadOrRefused) {
  std::mt19937_64 rng(3);
  const auto below = [&](size_t end) {
    return std::uniform_int_distribution<size_t>(0, end - 1)(rng);
  };
  const std::string sound =
      "{" + entry("a", "[2,2]", "[0,16]") + "," + entry("b", "[]", "[16,20]") +
      R"(,"__metadata__":{"format":"pt","DCP_SHARDING_INFO":"{\"a\":{\"saved_offsets\":[0,2],\"global_shape\":[2,4]},\"b\":{\"saved_offsets\":[],\"global_shape\":[]}}"}})";
  parse(sound, 20);
  const std::string alphabet = "{}[]\",:\\0129-+eE.tfn aF\x01\xff\xc3\n";
  int64_t read = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto json = sound;
    for (auto left = 1 + below(3); left > 0; --left) {
      const auto at = below(json.size());
      switch (below(4)) {
        case 0:
          json[at] = alphabet[below(alphabet.size())];
          break;
        case 1:
          json.erase(at, 1 + below(5));
          break;
        case 2:
          json.insert(at, 1, alphabet[below(alphabet.size())]);
          break;
        default: {
          const auto from = below(json.size());
          json.insert(at, json.substr(from, 1 + below(20)));
        }
      }
    }
    try {
      const auto header = parse(json, 20);
      // What was accepted lies inside the file.
      for (const auto& [name, tensor] : header.tensors) {
        ASSERT_LE(header.bytes, tensor.begin);
        ASSERT_LE(tensor.begin, tensor.end);
        ASSERT_LE(tensor.end, header.bytes + 20);
      }
      ++read;
    } catch (const CheckpointError&) {
    }
  }
  EXPECT_GT(read, 100); // spaces, names: some change nothing that matters
}

} // namespace
} // namespace weft::checkpoint
