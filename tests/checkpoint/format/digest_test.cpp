#include "checkpoint/format/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/files/limits.h"
#include "checkpoint/format/manifest.h"
#include "mesh/error/error.h"
#include "tests/support/expect_error.h"

namespace weft::checkpoint {
namespace {

std::string hex_sha256(const std::string& text) {
  return to_hex(sha256(std::as_bytes(std::span(text))));
}

// Source: FIPS 180-2, appendix B.
TEST(Digest, Sha256IsTheStandards) {
  EXPECT_EQ(
      hex_sha256(""),
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(
      hex_sha256("abc"),
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(
      hex_sha256(std::string(1'000'000, 'a')),
      "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Source: RFC 4231, cases 1, 2 and 6.
TEST(Digest, HmacIsTheStandards) {
  EXPECT_EQ(
      to_hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
      "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(
      to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
      "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(
      to_hex(hmac_sha256(
          std::string(131, '\xaa'),
          "Test Using Larger Than Block-Size Key - Hash Key First")),
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Digest, HexGoesBothWays) {
  const auto digest = sha256({});
  const auto text = to_hex(digest);
  const auto back = sha256_from_hex(text);
  ASSERT_TRUE(back);
  EXPECT_TRUE(is_equal(*back, digest));
  auto other = *back;
  other.back() ^= std::byte{1};
  EXPECT_FALSE(is_equal(other, digest));
  EXPECT_FALSE(sha256_from_hex(""));
  EXPECT_FALSE(sha256_from_hex(text + "0"));
  EXPECT_FALSE(sha256_from_hex(text.substr(1)));
  for (const char c : {'G', 'g', 'A', '/', ':', '`', '\0', ' '}) {
    auto spoiled = text;
    spoiled[17] = c;
    EXPECT_FALSE(sha256_from_hex(spoiled)) << c;
  }
}

TEST(PieceBytes, GrowUntilTheManifestIsShort) {
  constexpr int64_t kMib = 1 << 20;
  constexpr int64_t kTerabyte = int64_t{1} << 40;
  constexpr int64_t kMax = 8 * kMib;
  EXPECT_EQ(choose_piece_bytes(0), kDefaultPieceBytes);
  EXPECT_EQ(choose_piece_bytes(400'000 * kMib), kDefaultPieceBytes);
  EXPECT_EQ(choose_piece_bytes(90'000 * kMib, true), kDefaultPieceBytes);
  EXPECT_GT(choose_piece_bytes(100'000 * kMib, true), kDefaultPieceBytes);
  for (const bool sha256 : {false, true}) {
    const int64_t digits = sha256 ? 16 + 64 + 8 : 16 + 4;
    int64_t before = 0;
    for (int64_t total = 1; total <= 64 * kTerabyte; total *= 2) {
      const auto piece = choose_piece_bytes(total, sha256);
      EXPECT_LE(total / piece * digits, kMax) << total;
      EXPECT_GE(piece, before);
      EXPECT_EQ(piece & (piece - 1), 0);
      // Not larger than it has to be.
      EXPECT_TRUE(
          piece == kDefaultPieceBytes || total / (piece / 2) * digits >= kMax)
          << total;
      before = piece;
    }
  }
  EXPECT_EQ(
      choose_piece_bytes(std::numeric_limits<int64_t>::max()),
      limits::kMaxPieceBytes);
}

TEST(SafetensorsManifestErrors, IsNotWritten) {
  Manifest manifest;
  EXPECT_NE(to_json(manifest), "");
  manifest.has_no_hashes = true;
  EXPECT_THAT(
      test::message_of_thrown<mesh::UsageError>([&] { to_json(manifest); }),
      ::testing::HasSubstr("without hashes"));
}

} // namespace
} // namespace weft::checkpoint
