#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include <gtest/gtest.h>

#include "checkpoint/verify.h"
#include "tests/checkpoint/damage/killed_worker.h"
#include "tests/support/temp_folder.h"

// Damage of every kind, one after the other: verify() and load() find each.
namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::DamageCount;
using test::SampleOptions;
using test::Victim;

constexpr int64_t kPage = 4096;

class Corruption : public ::testing::Test {
 protected:
  // The ranks of a 2 x 2 mesh have written it.
  fs::path write(
      const test::Tensors& tensors,
      const std::string& name = "checkpoints",
      int64_t step = 20) const {
    SampleOptions options;
    options.grid = {2, 2};
    options.step = step;
    return test::write_sample(scratch_.path() / name, tensors, options);
  }

  // What the run's log has to show.
  static void report(const std::string& what, const DamageCount& count) {
    EXPECT_EQ(count.by_verify, count.done) << what;
    EXPECT_EQ(count.by_load, count.done) << what;
    RecordProperty(what, std::to_string(count.done));
    std::printf(
        "  %s: %ld done, %ld found by verify, %ld by load\n",
        what.c_str(),
        count.done,
        count.by_verify,
        count.by_load);
  }

  test::TempFolder scratch_;
};

test::Tensors with_large_matrix(uint64_t seed) {
  auto tensors = test::sample_tensors(seed);
  tensors["model.large"] = test::sample_matrix(seed, 512, 256);
  return tensors;
}

int64_t size_of(const Victim& victim, const std::string& file) {
  return static_cast<int64_t>(victim.content(file).size());
}

int64_t header_bytes(const Victim& victim, const std::string& file) {
  return victim.manifest().files.at(file).header_bytes;
}

// Where a header's JSON ends and its padding begins.
int64_t padding_begin(const Victim& victim, const std::string& file) {
  const auto head = victim.content(file).substr(
      0, static_cast<size_t>(header_bytes(victim, file)));
  return static_cast<int64_t>(head.find_last_not_of(' ')) + 1;
}

void flip(
    Victim& victim,
    const std::string& file,
    int64_t at,
    int bit,
    DamageCount& count) {
  SCOPED_TRACE(
      "bit " + std::to_string(bit) + " of byte " + std::to_string(at) + " of " +
      file);
  const char sound = victim.content(file)[static_cast<size_t>(at)];
  const char flipped = static_cast<char>(sound ^ (1 << bit));
  victim.put(file, at, {&flipped, 1});
  victim.expect_found(file, victim.tensor_at(file, at), count);
  victim.put(file, at, {&sound, 1});
}

TEST_F(Corruption, OneOfEachKindOfBit) {
  Victim victim(write(test::sample_tensors(1)), test::sample_tensors(1));
  std::map<std::string, DamageCount> counts;
  const auto flip_byte =
      [&](const char* kind, const std::string& file, int64_t at) {
        for (int bit = 0; bit < 8; ++bit) {
          flip(victim, file, at, bit, counts[kind]);
        }
      };
  for (const auto& [file, record] : victim.manifest().files) {
    for (int64_t at = 0; at < 8; ++at) {
      flip_byte("length", file, at);
    }
    flip_byte("json", file, 8);
    const auto padding = padding_begin(victim, file);
    flip_byte("json", file, padding - 1);
    for (auto at = padding; at < record.header_bytes; ++at) {
      flip_byte("padding", file, at);
    }
  }
  for (const auto& [key, tensor] : victim.manifest().tensors) {
    for (const auto& chunk : tensor.chunks) {
      if (chunk.begin < chunk.end) {
        flip_byte("first byte", chunk.file, chunk.begin);
        flip_byte("last byte", chunk.file, chunk.end - 1);
      }
    }
  }
  const auto end = size_of(victim, kManifestName);
  flip_byte("manifest", kManifestName, 0);
  for (int64_t back = 1; back <= 30; ++back) {
    flip_byte("manifest's hash", kManifestName, end - back);
  }
  EXPECT_EQ(counts.size(), 7);
  for (const auto& [kind, count] : counts) {
    report(kind, count);
  }
  victim.expect_sound();
}

TEST_F(Corruption, TenThousandRandomBits) {
  Victim victim(write(test::sample_tensors(1)), test::sample_tensors(1));
  std::mt19937_64 rng(12);
  const auto below = [&](int64_t end) {
    return std::uniform_int_distribution<int64_t>(0, end - 1)(rng);
  };
  DamageCount header;
  DamageCount payload;
  DamageCount manifest;
  const auto& files = victim.files();
  for (int i = 0; i < 10'500; ++i) {
    const auto& file =
        files[static_cast<size_t>(below(static_cast<int64_t>(files.size())))];
    const auto bit = static_cast<int>(below(8));
    if (file == kManifestName) {
      flip(victim, file, below(size_of(victim, file)), bit, manifest);
      continue;
    }
    const auto head = header_bytes(victim, file);
    if (i % 2 == 0) {
      flip(victim, file, below(head), bit, header);
    } else {
      const auto at = head + below(size_of(victim, file) - head);
      flip(victim, file, at, bit, payload);
    }
  }
  report("header", header);
  report("payload", payload);
  report("manifest", manifest);
  EXPECT_GE(header.done + payload.done + manifest.done, 10'000);
  victim.expect_sound();
}

TEST_F(Corruption, EveryTruncation) {
  Victim victim(write(with_large_matrix(1)), with_large_matrix(1));
  DamageCount count;
  for (const auto& file : victim.files()) {
    const auto size = size_of(victim, file);
    std::vector<int64_t> sizes = {1, 7, 8, size - 1};
    for (int64_t at = 0; at < size; at += kPage) {
      sizes.push_back(at);
    }
    for (const auto to : sizes) {
      SCOPED_TRACE(file + " cut to " + std::to_string(to));
      victim.resize(file, to);
      victim.expect_found(file, "", count);
      const auto& content = victim.content(file);
      victim.put(file, to, content.substr(static_cast<size_t>(to)));
    }
  }
  report("truncations", count);
  victim.expect_sound();
}

TEST_F(Corruption, EveryPageZeroed) {
  Victim victim(write(with_large_matrix(1)), with_large_matrix(1));
  DamageCount count;
  for (const auto& file : victim.files()) {
    const auto& content = victim.content(file);
    const auto size = size_of(victim, file);
    for (int64_t at = 0; at < size; at += kPage) {
      const auto bytes = std::min(kPage, size - at);
      const auto page =
          content.substr(static_cast<size_t>(at), static_cast<size_t>(bytes));
      // Load stops at the first tensor of several.
      const auto first = victim.tensor_at(file, at);
      const auto tensor =
          first == victim.tensor_at(file, at + bytes - 1) ? first : "";
      victim.put(file, at, std::string(page.size(), '\0'));
      victim.expect_found(file, tensor, count);
      victim.put(file, at, page);
    }
  }
  report("zeroed pages", count);
  victim.expect_sound();
}

TEST_F(Corruption, AppendedBytes) {
  Victim victim(write(test::sample_tensors(1)), test::sample_tensors(1));
  DamageCount count;
  for (const auto& file : victim.files()) {
    for (const auto& more :
         {std::string(1, '\0'),
          std::string("\n"),
          std::string(static_cast<size_t>(kPage), '\0'),
          victim.content(file)}) {
      victim.put(file, size_of(victim, file), more);
      victim.expect_found(file, "", count);
      victim.restore(file);
    }
  }
  report("appended", count);
  victim.expect_sound();
}

TEST_F(Corruption, ShardsOfEqualSizeSwapped) {
  test::Tensors tensors; // all offsets have one digit
  tensors["model.a"] = test::sample_matrix(1, 16, 8);
  tensors["model.b"] = test::sample_matrix(2, 8, 16);
  Victim victim(write(tensors), tensors);
  DamageCount count;
  const auto& files = victim.manifest().files;
  ASSERT_EQ(files.size(), 4);
  for (auto a = files.begin(); a != files.end(); ++a) {
    for (auto b = std::next(a); b != files.end(); ++b) {
      ASSERT_EQ(a->second.bytes, b->second.bytes);
      victim.replace(a->first, victim.content(b->first));
      victim.replace(b->first, victim.content(a->first));
      victim.expect_found(a->first, "", count);
      victim.restore(a->first);
      victim.expect_found(b->first, "", count); // alone, too
      victim.restore(b->first);
    }
  }
  report("swapped", count);
  victim.expect_sound();
}

TEST_F(Corruption, FilesOfAnotherStep) {
  Victim victim(write(test::sample_tensors(1)), test::sample_tensors(1));
  const auto other = write(test::sample_tensors(2), "other", 30);
  DamageCount count;
  for (const auto& file : victim.files()) {
    const auto theirs = test::read_file(other / file);
    ASSERT_EQ(theirs.size(), victim.content(file).size());
    victim.replace(file, theirs);
    victim.expect_found(file, "", count);
    victim.restore(file);
  }
  report("of another step", count);
  victim.expect_sound();
}

TEST_F(Corruption, AStepUnderAnothersName) {
  Victim victim(write(test::sample_tensors(1)), test::sample_tensors(1));
  const auto other = write(test::sample_tensors(2), "other", 30);
  DamageCount count;
  for (const auto& file : victim.files()) {
    victim.replace(file, test::read_file(other / file));
  }
  victim.expect_found(kManifestName, "", count);
  for (const auto& file : victim.files()) {
    victim.restore(file);
  }
  report("under another's name", count);
  victim.expect_sound();
}

TEST_F(Corruption, FilesDeletedOrNoFiles) {
  Victim victim(write(test::sample_tensors(1)), test::sample_tensors(1));
  DamageCount count;
  const auto expect_found = [&](const std::string& file) {
    // What is lost with it is named.
    victim.expect_found(file, victim.first_tensor_in(file), count);
    victim.restore_entry(file);
  };
  const auto outside = scratch_.path() / "outside";
  for (const auto& file : victim.files()) { // the first, the middle, the last
    SCOPED_TRACE(file);
    const auto path = victim.folder() / file;
    fs::remove(path);
    expect_found(file);
    fs::remove(path);
    fs::create_directory(path);
    expect_found(file);
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect_found(file);
    test::write_file(outside, victim.content(file)); // all right but its place
    fs::remove(path);
    fs::create_symlink(outside, path);
    expect_found(file);
    auto changed = victim.content(file);
    changed.back() ^= 1;
    test::write_file(outside, changed);
    fs::remove(path);
    fs::create_hard_link(outside, path);
    victim.expect_found(file, "", count);
    fs::remove(outside);
    victim.restore_entry(file);
  }
  report("deleted or no files", count);
  victim.expect_sound();
}

} // namespace
} // namespace weft::checkpoint
