#include <sys/resource.h>

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/files/error.h"
#include "checkpoint/files/limits.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/hash.h"
#include "checkpoint/format/manifest_rules.h"
#include "checkpoint/store/store.h"
#include "checkpoint/verify.h"
#include "mesh/error/error.h"
#include "tests/checkpoint/damage/killed_worker.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

// Changes by someone who makes the hashes right again, as a tool that knows the
// format would, or one who wants to deceive.
namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using test::DamageCount;
using test::SampleOptions;
using test::Victim;
using ::testing::HasSubstr;

constexpr const char* kTensor = "model.embed.weight";

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// A step folder with files and manifest open for editing.
class Tamperer {
 public:
  explicit Tamperer(Victim& victim) : victim_(victim) { reset(); }

  void reset() {
    manifest = Json::parse(victim_.content(kManifestName));
    for (const auto& file : victim_.files()) {
      files[file] = victim_.content(file);
    }
  }

  Json& tensor() { return manifest["tensors"][kTensor]; }
  Json& chunk() { return tensor()["chunks"][0]; }
  std::string file() { return chunk()["file"]; }

  // `edit` must not make it longer.
  void edit_header(const std::function<void(Json&)>& edit) {
    auto& bytes = files[file()];
    auto& record = manifest["files"][file()];
    const auto size = record["header_bytes"].get<size_t>() - 8;
    auto header = Json::parse(bytes.substr(8, size));
    edit(header);
    auto text = header.dump();
    ASSERT_LE(text.size(), size);
    text.resize(size, ' ');
    bytes.replace(8, size, text);
    const auto head = bytes.substr(0, 8 + size);
    record["header_xxh3"] = to_hex(hash(head));
    if (record.contains("header_sha256")) {
      record["header_sha256"] = to_hex(sha256(bytes_of(head)));
    }
  }

  // A bit of the first piece; its XXH3 is right afterwards.
  void flip_bit(bool rehash_sha256) {
    const auto begin = chunk()["bytes"][0].get<size_t>();
    const auto end = chunk()["bytes"][1].get<size_t>();
    auto& bytes = files[file()];
    bytes[begin + 17] ^= 4;
    const auto size =
        std::min(manifest["piece_bytes"].get<size_t>(), end - begin);
    const auto piece = bytes.substr(begin, size);
    chunk()["xxh3"][0] = to_hex(hash(piece));
    if (rehash_sha256) {
      chunk()["sha256"][0] = to_hex(sha256(bytes_of(piece)));
    }
  }

  // All that was edited. The manifest's hash is right, and its HMAC is `key`'s,
  // the old one, or gone.
  enum class Hmac { kOld, kGone, kOfKey };
  void write(Hmac hmac = Hmac::kOld, const std::string& key = "") {
    auto json = manifest;
    const auto old = json.value("hmac_sha256", "");
    json.erase("xxh3");
    json.erase("hmac_sha256");
    auto text = json.dump(1);
    text.resize(text.rfind('}'));
    text += ",\n";
    const bool has_hmac =
        hmac == Hmac::kOfKey || (hmac == Hmac::kOld && !old.empty());
    if (has_hmac) {
      text += std::string(kHmacBefore).append(kHmacDigits).append(kHmacAfter);
    }
    text += std::string(kHashBefore).append(kHashDigits).append(kHashAfter);
    if (has_hmac) {
      const auto digits =
          hmac == Hmac::kOld ? old : to_hex(hmac_sha256(key, text));
      text.replace(hmac_position(text), digits.size(), digits);
    }
    const auto digits = to_hex(hash(text));
    text.replace(hash_position(text), digits.size(), digits);
    files[kManifestName] = text;
    for (const auto& [name, content] : files) {
      victim_.replace(name, content);
    }
  }

  Json manifest;
  std::map<std::string, std::string> files;

 private:
  Victim& victim_;
};

class Tampering : public ::testing::Test {
 protected:
  fs::path write(const SampleOptions& more = {}) const {
    auto options = more;
    options.grid = {2, 2};
    return test::write_sample(
        scratch_.path(), test::sample_tensors(1), options);
  }

  static SampleOptions with_sha256(const std::string& key = "") {
    SampleOptions options;
    options.sha256 = true;
    options.hmac_key = key;
    return options;
  }

  test::TempFolder scratch_;
};

void erase_key(Json& header) {
  constexpr const char* kInfo = "DCP_SHARDING_INFO";
  header.erase(kTensor);
  auto info = Json::parse(header["__metadata__"][kInfo].get<std::string>());
  info.erase(kTensor);
  header["__metadata__"][kInfo] = info.dump();
}

struct Edit {
  const char* what;
  std::function<void(Tamperer&)> edit;
  // In the manifest, or else in the chunk's file.
  bool is_in_manifest;
  const char* tensor = kTensor;
};

const std::vector<Edit>& edits() {
  static const std::vector<Edit> all = {
      {"key deleted from the header",
       [](Tamperer& t) { t.edit_header(erase_key); },
       false,
       ""},
      {"key deleted from the manifest",
       [](Tamperer& t) { t.manifest["tensors"].erase(kTensor); },
       true,
       ""},
      {"key deleted from both",
       [](Tamperer& t) {
         t.edit_header(erase_key);
         t.manifest["tensors"].erase(kTensor);
       },
       true,
       ""},
      {"chunk deleted",
       [](Tamperer& t) { t.tensor()["chunks"].erase(0); },
       true},
      {"chunk deleted from header and manifest",
       [](Tamperer& t) {
         t.edit_header(erase_key);
         t.tensor()["chunks"].erase(0);
       },
       true},
      {"chunk duplicated",
       [](Tamperer& t) {
         const Json copy = t.chunk();
         t.tensor()["chunks"].push_back(copy);
       },
       true},
      {"chunk of two files",
       [](Tamperer& t) {
         t.tensor()["chunks"][1]["offset"] = t.chunk()["offset"];
       },
       true},
      {"offsets swapped",
       [](Tamperer& t) {
         std::swap(t.chunk()["offset"], t.tensor()["chunks"][1]["offset"]);
       },
       false},
      {"hole in the tensor",
       [](Tamperer& t) {
         auto& shape = t.chunk()["shape"];
         auto& bytes = t.chunk()["bytes"];
         shape[0] = shape[0].get<int64_t>() - 1;
         bytes[1] = bytes[1].get<int64_t>() - 4 * shape[1].get<int64_t>();
       },
       true},
      {"gap in the header",
       [](Tamperer& t) {
         t.edit_header([](Json& header) {
           auto& offsets = header[kTensor]["data_offsets"];
           offsets[0] = offsets[0].get<int64_t>() + 4;
         });
       },
       false},
      {"overlap in the header",
       [](Tamperer& t) {
         t.edit_header([](Json& header) {
           auto& offsets = std::prev(header.end()).value()["data_offsets"];
           const auto begin = offsets[0].get<int64_t>();
           offsets = {0, offsets[1].get<int64_t>() - begin};
         });
       },
       false,
       ""},
      {"tensor twice under two names",
       [](Tamperer& t) {
         const Json copy = t.tensor();
         t.manifest["tensors"]["model.copy"] = copy;
       },
       true,
       ""},
      {"another dtype in the manifest",
       [](Tamperer& t) { t.tensor()["dtype"] = "I32"; },
       false},
      {"another step in the manifest",
       [](Tamperer& t) { t.manifest["step"] = 21; },
       true,
       ""},
      {"more bytes in the manifest",
       [](Tamperer& t) {
         auto& bytes = t.manifest["files"][t.file()]["bytes"];
         bytes = bytes.get<int64_t>() + 4;
       },
       true,
       ""},
  };
  return all;
}

TEST_F(Tampering, EditsWithRightHashesAreFound) {
  Victim victim(write(), test::sample_tensors(1));
  Tamperer tamperer(victim);
  tamperer.write(); // nothing edited, but the text is another
  victim.expect_sound();
  DamageCount count;
  for (const auto& one : edits()) {
    SCOPED_TRACE(one.what);
    tamperer.reset();
    one.edit(tamperer);
    tamperer.write();
    const auto file =
        one.is_in_manifest ? std::string(kManifestName) : tamperer.file();
    victim.expect_found(file, one.tensor, count);
  }
  EXPECT_EQ(count.by_verify, static_cast<int64_t>(edits().size()));
  EXPECT_EQ(count.by_load, count.by_verify);
  RecordProperty("edits", std::to_string(count.done));
}

// XXH3 alone is no help against this; then nothing of it would be seen.
TEST_F(Tampering, Sha256FindsWhatXxh3WasMadeRightFor) {
  Victim plain(write(), test::sample_tensors(1));
  Tamperer unseen(plain);
  unseen.flip_bit(false);
  unseen.write();
  plain.expect_sound();

  auto options = with_sha256();
  options.step = 30;
  Victim victim(write(options), test::sample_tensors(1));
  victim.expect_sound();
  Tamperer tamperer(victim);
  tamperer.flip_bit(false);
  tamperer.write();
  DamageCount count;
  victim.expect_found(tamperer.file(), kTensor, count);
  EXPECT_THAT(verify(victim.folder()).at(0).what, HasSubstr("SHA-256"));

  tamperer.reset();
  const auto right =
      tamperer.manifest["files"][tamperer.file()]["header_sha256"];
  tamperer.edit_header(
      [](Json& header) { header["__metadata__"]["format"] = "tp"; });
  tamperer.manifest["files"][tamperer.file()]["header_sha256"] = right;
  tamperer.write();
  victim.expect_found(tamperer.file(), "", count);
}

TEST_F(Tampering, HmacFindsWhatAllHashesWereMadeRightFor) {
  using Hmac = Tamperer::Hmac;
  const std::string key = "a key of the user's";
  Victim victim(write(with_sha256(key)), test::sample_tensors(1));
  victim.expect_sound(key);
  victim.expect_sound(); // who has no key reads it all the same
  Tamperer tamperer(victim);
  DamageCount count;
  tamperer.flip_bit(true);
  for (const auto hmac : {Hmac::kOld, Hmac::kGone, Hmac::kOfKey}) {
    tamperer.write(hmac, "another key");
    victim.expect_found(kManifestName, "", count, key);
    victim.expect_sound();
  }
  // Nothing changed but the signature.
  tamperer.reset();
  tamperer.write(Hmac::kGone);
  victim.expect_found(kManifestName, "", count, key);
  tamperer.write(Hmac::kOfKey, key);
  victim.expect_sound(key);
  victim.expect_found(kManifestName, "", count, key + "x");
  // Right, but not all is covered.
  tamperer.chunk().erase("sha256");
  tamperer.write(Hmac::kOfKey, key);
  victim.expect_found(kManifestName, kTensor, count, key);
  tamperer.reset();
  tamperer.manifest["files"][tamperer.file()].erase("header_sha256");
  tamperer.write(Hmac::kOfKey, key);
  victim.expect_found(kManifestName, "", count, key);
  EXPECT_EQ(count.by_verify, count.done);
  EXPECT_EQ(count.by_load, count.done);
}

TEST_F(Tampering, KeyThatWasNotThereIsMissed) {
  Victim victim(write(with_sha256()), test::sample_tensors(1));
  DamageCount count;
  victim.expect_found(kManifestName, "", count, "key");
  EXPECT_THAT(
      test::message_of_thrown<CheckpointError>(
          [&] { read_manifest(victim.folder(), "key"); }),
      HasSubstr("saved without one"));
}

TEST_F(Tampering, EveryBitOfTheSignedEndCounts) {
  const std::string key = "k";
  Victim victim(write(with_sha256(key)), test::sample_tensors(1));
  const auto& text = victim.content(kManifestName);
  for (size_t at = hmac_position(text) - kHmacBefore.size(); at < text.size();
       ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      auto flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      EXPECT_THROW(parse_manifest(flipped, "it", key), CheckpointError) << at;
      EXPECT_THROW(parse_manifest(flipped, "it"), CheckpointError) << at;
    }
  }
}

// The pieces are as they were: no chunk of the sample has two.
TEST_F(Tampering, HugePiecesCostNoMoreThanTheFile) {
  constexpr int64_t kMaxKib = 64 << 10;
  Victim victim(write(), test::sample_tensors(1));
  Tamperer tamperer(victim);
  tamperer.manifest["piece_bytes"] = limits::kMaxPieceBytes;
  tamperer.write();
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  victim.expect_sound();
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, kMaxKib);
}

TEST_F(Tampering, KeyNeedsSha256ToSign) {
  EXPECT_THAT(
      test::message_of_thrown<mesh::UsageError>([&] {
        SampleOptions options;
        options.hmac_key = "key";
        write(options);
      }),
      HasSubstr("SHA-256"));
}

} // namespace
} // namespace weft::checkpoint
