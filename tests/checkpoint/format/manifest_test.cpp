#include "checkpoint/format/manifest.h"

#include <functional>
#include <iterator>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/files/error.h"
#include "checkpoint/files/limits.h"
#include "checkpoint/format/tiling.h"
#include "checkpoint/store/store.h"
#include "mesh/error/error.h"
#include "tests/checkpoint/damage/damaged_step.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/expect_error.h"

namespace weft::checkpoint {
namespace {

using test::message_of_thrown;
using ::testing::HasSubstr;

// Two files, a matrix in four quarters that belong to two writers each twice
// would be too simple: 6 x 4 as 4+2 rows, the first four rows in halves.
Manifest sample() {
  Manifest manifest;
  manifest.step = 7;
  manifest.piece_bytes = 4096;
  manifest.weft_version = "0.1.0";
  manifest.created = "2026-01-02T03:04:05Z";
  manifest.state =
      R"({"cursor": [1, 2.50, {"a": null}], "b": 18446744073709551615})";
  manifest.layout = R"({ "x": {} })";
  for (const char* name : {"a.safetensors", "b.safetensors", "c.safetensors"}) {
    manifest.files[name] = {64 + 32, 64, 5};
  }
  auto& tensor = manifest.tensors["w"];
  tensor.dtype = at::kFloat;
  tensor.shape = {6, 4};
  tensor.mesh = "dp=2 \"tp\"=2";
  tensor.chunks = {
      {"a.safetensors", {0, 0}, {4, 2}, 64, 96, {1}},
      {"b.safetensors", {0, 2}, {4, 2}, 64, 96, {0xffffffffffffffff}},
      {"c.safetensors", {4, 0}, {2, 4}, 64, 96, {3}}};
  manifest.tensors["empty"] = {at::kHalf, {0, 3}, "", "", {}};
  return manifest;
}

std::string parse_refuses(const std::string& text) {
  return message_of_thrown<CheckpointError>(
      [&] { parse_manifest(text, "it"); });
}

std::string
replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return test::with_right_hash(text);
}

TEST(ManifestFile, ComesBack) {
  const auto manifest = sample();
  const auto text = to_json(manifest);
  const auto back = parse_manifest(text, "it");
  EXPECT_EQ(back.step, 7);
  EXPECT_EQ(back.piece_bytes, 4096);
  EXPECT_EQ(back.created, manifest.created);
  EXPECT_EQ(back.state, manifest.state);
  EXPECT_EQ(back.layout, manifest.layout);
  EXPECT_EQ(back.files.at("b.safetensors").header_hash, 5);
  const auto& tensor = back.tensors.at("w");
  EXPECT_EQ(tensor.mesh, manifest.tensors.at("w").mesh);
  ASSERT_EQ(tensor.chunks.size(), 3);
  EXPECT_EQ(tensor.chunks[1].offset, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(tensor.chunks[1].piece_hashes.at(0), 0xffffffffffffffff);
  EXPECT_EQ(tensor.chunks[2].end, 96);
  EXPECT_EQ(back.tensors.at("empty").dtype, at::kHalf);
  EXPECT_EQ(to_json(back), text);
}

// An optimizer's moments, each cut into rows over all ranks: 93 MB.
TEST(ManifestFile, ComesBackFromFourThousandRanks) {
  constexpr int64_t kRanks = 4096;
  constexpr int64_t kMoments = 160;
  constexpr int64_t kHeader = 64;
  constexpr int64_t kBytes = 32;
  Manifest manifest;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    manifest.files["rank-" + std::to_string(10'000 + rank) + ".safetensors"] = {
        kHeader + kMoments * kBytes, kHeader, 5};
  }
  for (int64_t i = 0; i < kMoments; ++i) {
    auto& tensor = manifest.tensors
                       ["optimizer.state.model.layers." +
                        std::to_string(1000 + i) + ".weight.exp_avg"];
    tensor.shape = {kRanks, 8};
    tensor.placements = "[S(0)]";
    tensor.mesh = "dp=4096";
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const int64_t begin = kHeader + i * kBytes;
      tensor.chunks.push_back(
          {"rank-" + std::to_string(10'000 + rank) + ".safetensors",
           {rank, 0},
           {1, 8},
           begin,
           begin + kBytes,
           {static_cast<uint64_t>(rank)}});
    }
  }
  const auto text = to_json(manifest);
  EXPECT_GT(text.size(), size_t{64} << 20);
  EXPECT_LT(text.size() / (kRanks * kMoments), 250) << "bytes a chunk";
  const auto back = parse_manifest(text, "it");
  EXPECT_EQ(back.files.size(), kRanks);
  ASSERT_EQ(back.tensors.size(), kMoments);
  const auto& last = std::prev(back.tensors.end())->second.chunks;
  ASSERT_EQ(last.size(), kRanks);
  EXPECT_EQ(last.back().piece_hashes, (std::vector<uint64_t>{kRanks - 1}));
}

TEST(ManifestFile, EveryFlippedBitIsFound) {
  const auto text = to_json(sample());
  for (size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      auto flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      EXPECT_THROW(parse_manifest(flipped, "it"), CheckpointError)
          << at << ", bit " << bit;
    }
  }
}

TEST(ManifestFile, EveryCutIsFound) {
  const auto text = to_json(sample());
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THROW(parse_manifest(text.substr(0, size), "it"), CheckpointError);
    EXPECT_THROW(parse_manifest(text.substr(size + 1), "it"), CheckpointError);
  }
  EXPECT_THROW(parse_manifest(text + "\n", "it"), CheckpointError);
  EXPECT_THROW(parse_manifest(text + text, "it"), CheckpointError);
}

TEST(ManifestFile, AnotherVersionOrFormatIsNamed) {
  const auto text = to_json(sample());
  const auto newer =
      parse_refuses(replaced(text, "\"version\": 1", "\"version\": 2"));
  EXPECT_THAT(newer, HasSubstr("format version is 2"));
  EXPECT_THAT(newer, HasSubstr("1"));
  EXPECT_THAT(
      parse_refuses(replaced(text, "weft.checkpoint", "moth.checkpoint")),
      HasSubstr("moth.checkpoint"));
}

TEST(ManifestFile, UnknownMembersAreIgnored) {
  const auto text = to_json(sample());
  for (const std::string more :
       {"\"more\": 1,",
        "\"more\": -1.5e3,",
        "\"more\": null,",
        "\"more\": [1, {\"shape\": [\"x\"]}],",
        "\"more\": {\"tensors\": {\"w\": 1}},"}) {
    SCOPED_TRACE(more);
    const auto extended = replaced(text, "\"step\"", more + "\"step\"");
    EXPECT_EQ(parse_manifest(extended, "it").step, 7);
    const auto inside = replaced(text, "\"dtype\"", more + "\"dtype\"");
    EXPECT_EQ(parse_manifest(inside, "it").tensors.at("w").chunks.size(), 3);
  }
}

TEST(ManifestFile, EditsWithARightHashAreFound) {
  const auto text = to_json(sample());
  const std::vector<std::pair<std::string, std::string>> edits = {
      {"\"step\": 7,", ""},
      {"\"step\": 7", "\"step\": -7"},
      {"\"step\": 7", "\"step\": 7.0"},
      {"\"step\": 7", "\"step\": 1e999"},
      {"\"step\": 7", "\"step\": \"7\""},
      {"\"step\": 7", "\"step\": [7]"},
      {"\"step\": 7", "\"step\": 7, \"step\": 7"},
      {"\"step\": 7", "\"step\": 1000000000000000000"},
      {"\"piece_bytes\": 4096", "\"piece_bytes\": 0"},
      {"\"piece_bytes\": 4096", "\"piece_bytes\": 16"},
      {"\"files\"", "\"fails\""},
      {"\"state\": {", "\"state\": [{"},
      {"\"layout\": {", "\"layout\": 5, \"x\": {"},
      {"\"a\": null", "\"a\": null, \"a\": null"},
      {"\"bytes\": 96", "\"bytes\": 97"},
      {"\"bytes\": 96", "\"bytes\": 9223372036854775807"},
      {"\"header_bytes\": 64", "\"header_bytes\": 0"},
      {"\"header_bytes\": 64", "\"header_bytes\": 56"},
      {"\"header_bytes\": 64", "\"header_bytes\": 72"},
      {"0000000000000005", "000000000000000G"},
      {"0000000000000005", "05"},
      {"ffffffffffffffff", "FFFFFFFFFFFFFFFF"},
      {"\"a.safetensors\": {", "\"../a.safetensors\": {"},
      {"\"a.safetensors\": {", "\"/etc/a.safetensors\": {"},
      {"\"a.safetensors\": {", "\"a\\u0000.safetensors\": {"},
      {"\"a.safetensors\": {", "\"a\\n.safetensors\": {"},
      {"\"a.safetensors\": {", "\"manifest.json\": {"},
      {"\"a.safetensors\": {", "\"d.safetensors\": {"},
      {"\"a.safetensors\": {", "\"a.safetensors\": 5, \"x\": {"},
      {"\"w\": {", "\"w\": [], \"v\": {"},
      {"\"w\": {", "\"\": {"},
      {"\"dtype\": \"F32\"", "\"dtype\": \"F33\""},
      {"\"dtype\": \"F32\"", "\"dtype\": \"F64\""},
      {"\"shape\": [6, 4]", "\"shape\": [6, 5]"},
      {"\"shape\": [6, 4]", "\"shape\": [7, 4]"},
      {"\"shape\": [6, 4]", "\"shape\": [6]"},
      {"\"shape\": [6, 4]", "\"shape\": [6, 4, 1]"},
      {"\"shape\": [6, 4]", "\"shape\": [0, 4]"},
      {"\"shape\": [6, 4]", "\"shape\": [4611686018427387904, 4]"},
      {"\"shape\": [6, 4]", "\"shape\": [1,1,1,1,1,1,1,6,4]"},
      {"\"shape\": [6, 4]", "\"shape\": [6, [4]]"},
      {"\"shape\": [6, 4]", "\"shape\": [6, null]"},
      {"\"shape\": [6, 4]", "\"shape\": {\"0\": 6}"},
      {"\"offset\": [0, 0]", "\"offset\": [1, 0]"},
      {"\"offset\": [0, 0]", "\"offset\": [0, 2]"},
      {"\"offset\": [0, 0]", "\"offset\": [0]"},
      {"\"offset\": [0, 0]", "\"offset\": [9223372036854775807, 0]"},
      {"\"shape\": [4, 2]", "\"shape\": [2, 4]"},
      {"\"shape\": [4, 2]", "\"shape\": [8, 1]"},
      {"\"shape\": [4, 2]", "\"shape\": [0, 2]"},
      {"\"bytes\": [64, 96]", "\"bytes\": [64, 92]"},
      {"\"bytes\": [64, 96]", "\"bytes\": [60, 92]"},
      {"\"bytes\": [64, 96]", "\"bytes\": [96, 64]"},
      {"\"bytes\": [64, 96]", "\"bytes\": [64]"},
      {"\"bytes\": [64, 96]", "\"bytes\": [64, 96, 96]"},
      {"\"bytes\": [64, 96]",
       "\"bytes\": [9223372036854775775, 9223372036854775807]"},
      {"[\"0000000000000001\"]", "[]"},
      {"[\"0000000000000001\"]",
       "[\"0000000000000001\", \"0000000000000001\"]"},
      {"[\"0000000000000001\"]", "[1]"},
      {"\"file\": \"a.safetensors\"", "\"file\": \"b.safetensors\""},
      {"\"file\": \"a.safetensors\"", "\"file\": \"../a.safetensors\""},
      {"\"file\": \"a.safetensors\"", "\"fail\": \"a.safetensors\""},
      {"\"chunks\": [{", "\"chunks\": [5, {"},
      {"\"chunks\": [{", "\"chunks\": [[], {"},
      {"\"shape\": [0, 3]", "\"shape\": [1, 3]"},
      {"{\n\"format\"", " {\n\"format\""},
      {"{\n\"format\"", "\xef\xbb\xbf{\n\"format\""},
      {"dp=2", "dp=\xff"},
  };
  for (const auto& [from, to] : edits) {
    SCOPED_TRACE(from + " -> " + to);
    EXPECT_THAT(parse_refuses(replaced(text, from, to)), HasSubstr("it"));
  }
  const auto nul = replaced(text, "dp=2", std::string("d\0=2", 4));
  EXPECT_THAT(parse_refuses(nul), HasSubstr("NUL"));
}

TEST(ManifestFile, DepthIsBounded) {
  const auto text = to_json(sample());
  const auto nested = [&](size_t depth) {
    return replaced(
        text,
        "\"x\": {}",
        "\"x\": " + std::string(depth, '[') + std::string(depth, ']'));
  };
  parse_manifest(nested(30), "it"); // in the layout in the manifest: 32
  EXPECT_THAT(parse_refuses(nested(31)), HasSubstr("32"));
  parse_refuses(nested(1'000'000));
}

TEST(ManifestFile, WriterRefusesWhatAReaderWould) {
  const std::vector<std::function<void(Manifest&)>> edits = {
      [](Manifest& m) { m.tensors["w"].chunks.pop_back(); },
      [](Manifest& m) {
        m.tensors["w"].chunks[0].offset = {1, 0};
      },
      [](Manifest& m) { m.tensors.erase("w"); },
      [](Manifest& m) {
        m.files["d.safetensors"] = {96, 64, 0};
      },
      [](Manifest& m) {
        m.files["d/e.safetensors"] = {64, 64, 0};
      },
      [](Manifest& m) { m.step = -1; },
      [](Manifest& m) { m.state = "[]"; },
      [](Manifest& m) { m.state = "{"; },
      [](Manifest& m) { m.state = "{} {}"; },
      [](Manifest& m) { m.state = R"({"a": 1, "a": 2})"; },
      [](Manifest& m) { m.layout = ""; },
      [](Manifest& m) { m.tensors["w"].mesh = "\xff"; },
      [](Manifest& m) { m.tensors["empty"].dtype = at::kComplexDouble; },
  };
  for (size_t i = 0; i < edits.size(); ++i) {
    auto manifest = sample();
    edits[i](manifest);
    EXPECT_THROW(to_json(manifest), mesh::UsageError) << i;
  }
}

TEST(ManifestFile, MutationsAreReadOrRefused) {
  std::mt19937_64 rng(4);
  const auto below = [&](size_t end) {
    return std::uniform_int_distribution<size_t>(0, end - 1)(rng);
  };
  const auto sound = to_json(sample());
  const std::string alphabet = "{}[]\",:\\0129-+eE.tfn aF\x01\xff\n";
  for (int i = 0; i < 20'000; ++i) {
    auto text = sound;
    const auto at = below(text.size() - 30);
    if (below(2) == 0) {
      text[at] = alphabet[below(alphabet.size())];
    } else {
      const auto from = below(text.size());
      text.insert(at, text.substr(from, 1 + below(20)));
    }
    try {
      parse_manifest(test::with_right_hash(text), "it");
    } catch (const CheckpointError&) {
    }
  }
}

std::vector<Chunk> boxes(
    const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>&
        places) {
  std::vector<Chunk> chunks;
  for (const auto& [offset, shape] : places) {
    chunks.push_back({"f", offset, shape, 0, 0, {}});
  }
  return chunks;
}

TEST(Tiling, NamesTheFirstElementThatIsNotHeldOnce) {
  EXPECT_FALSE(tiling_error({}, boxes({{{}, {}}})));
  EXPECT_FALSE(tiling_error({4}, boxes({{{2}, {2}}, {{0}, {2}}})));
  EXPECT_FALSE(tiling_error(
      {3, 3}, // no grid: a pinwheel
      boxes(
          {{{0, 0}, {1, 2}},
           {{0, 2}, {2, 1}},
           {{2, 1}, {1, 2}},
           {{1, 0}, {2, 1}},
           {{1, 1}, {1, 1}}})));
  EXPECT_THAT(
      tiling_error({4, 4}, boxes({{{0, 0}, {4, 2}}, {{1, 2}, {3, 2}}})).value(),
      HasSubstr("[0, 2] of [4, 4] is in 0 chunks"));
  EXPECT_THAT(
      tiling_error({4, 4}, boxes({{{0, 0}, {4, 3}}, {{0, 2}, {4, 2}}})).value(),
      HasSubstr("[0, 2] of [4, 4] is in 2 chunks"));
  EXPECT_THAT(
      tiling_error({4}, {}).value(), HasSubstr("[0] of [4] is in 0 chunks"));
  EXPECT_THAT(
      tiling_error({}, boxes({{{}, {}}, {{}, {}}})).value(),
      HasSubstr("2 chunks"));
}

// Against counting, on random boxes of a small tensor.
TEST(Tiling, AgreesWithCounting) {
  std::mt19937_64 rng(5);
  const std::vector<int64_t> shape = {3, 2, 3};
  const auto random = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(rng);
  };
  int tilings = 0;
  for (int i = 0; i < 20'000; ++i) {
    // Cut the whole at random, then perhaps spoil one box.
    std::vector<Chunk> chunks = boxes({{{0, 0, 0}, shape}});
    for (auto cuts = random(0, 5); cuts > 0; --cuts) {
      const auto which = static_cast<size_t>(
          random(0, static_cast<int64_t>(chunks.size()) - 1));
      const auto d = static_cast<size_t>(random(0, 2));
      if (chunks[which].shape[d] < 2) {
        continue;
      }
      const auto size = random(1, chunks[which].shape[d] - 1);
      auto rest = chunks[which];
      chunks[which].shape[d] = size;
      rest.offset[d] += size;
      rest.shape[d] -= size;
      chunks.push_back(rest);
    }
    if (random(0, 1) == 0) {
      auto& chunk = chunks[static_cast<size_t>(
          random(0, static_cast<int64_t>(chunks.size()) - 1))];
      const auto d = static_cast<size_t>(random(0, 2));
      chunk.offset[d] = random(0, shape[d] - 1);
      chunk.shape[d] = random(1, shape[d] - chunk.offset[d]);
    }
    std::vector<int> held(18);
    for (const auto& chunk : chunks) {
      for (int64_t x = 0; x < chunk.shape[0]; ++x) {
        for (int64_t y = 0; y < chunk.shape[1]; ++y) {
          for (int64_t z = 0; z < chunk.shape[2]; ++z) {
            const auto flat =
                ((chunk.offset[0] + x) * 2 + chunk.offset[1] + y) * 3 +
                chunk.offset[2] + z;
            ++held[static_cast<size_t>(flat)];
          }
        }
      }
    }
    const auto wrong =
        std::ranges::find_if(held, [](int count) { return count != 1; });
    const auto fault = tiling_error(shape, chunks);
    ASSERT_EQ(fault.has_value(), wrong != held.end());
    tilings += fault ? 0 : 1;
    if (fault) {
      const auto flat = wrong - held.begin();
      EXPECT_EQ(
          *fault,
          "element [" + std::to_string(flat / 6) + ", " +
              std::to_string(flat / 3 % 2) + ", " + std::to_string(flat % 3) +
              "] of [3, 2, 3] is in " + std::to_string(*wrong) + " chunks");
    }
  }
  EXPECT_GT(tilings, 1000);
}

TEST(Tiling, ManyChunksAreFast) {
  std::vector<Chunk> chunks;
  constexpr int64_t kSide = 400; // 160,000 chunks
  for (int64_t row = 0; row < kSide; ++row) {
    for (int64_t column = 0; column < kSide; ++column) {
      chunks.push_back({"f", {row * 2, column}, {2, 1}, 0, 0, {}});
    }
  }
  EXPECT_FALSE(tiling_error({2 * kSide, kSide}, chunks));
  chunks[100'000].offset[1] -= 1;
  EXPECT_TRUE(tiling_error({2 * kSide, kSide}, chunks));
}

} // namespace
} // namespace weft::checkpoint
