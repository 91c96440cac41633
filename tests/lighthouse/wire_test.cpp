#include "lighthouse/wire.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::lighthouse {
namespace {

template <class T>
T sent(const T& message) {
  MessageReader reader;
  reader.append(encode(message));
  const auto received = reader.take();
  EXPECT_FALSE(reader.take());
  return std::get<T>(*received);
}

TEST(Wire, AReportArrivesAsItWas) {
  const Report report{
      .group = 1ULL << 63,
      .ballot = 7,
      .sent = std::chrono::hours(100000),
      .epoch = {{7, 2}, {6, 1}, {3, 1ULL << 40}, {41, 0xfedcba9876543210}},
      .has_left = true,
      .is_of_epoch = true,
      .applied = {42, 1},
      .prepared = {43, ~0ULL},
      .is_held = true,
      .has_finished = true};
  const auto received = sent(report);
  EXPECT_EQ(received.group, report.group);
  EXPECT_EQ(received.ballot, report.ballot);
  EXPECT_EQ(received.sent, report.sent);
  EXPECT_EQ(received.epoch.number, report.epoch.number);
  EXPECT_EQ(received.epoch.generation, report.epoch.generation);
  EXPECT_EQ(received.epoch.members, report.epoch.members);
  EXPECT_EQ(received.epoch.base, report.epoch.base);
  EXPECT_TRUE(received.has_left && received.is_of_epoch && received.is_held);
  EXPECT_TRUE(received.has_finished);
  EXPECT_EQ(received.applied, report.applied);
  EXPECT_EQ(received.prepared, report.prepared);
}

TEST(Wire, AReplyArrivesAsItWas) {
  const Reply reply{
      .group = 9,
      .ballot = 8,
      .answers = Time(5),
      .directive = Directive::kEnter,
      .epoch = {{8, 1}, {8, 1}, {9}, {}},
      .acknowledged = {3, 4}};
  const auto received = sent(reply);
  EXPECT_EQ(received.group, reply.group);
  EXPECT_EQ(received.ballot, reply.ballot);
  EXPECT_EQ(received.answers, reply.answers);
  EXPECT_EQ(received.directive, reply.directive);
  EXPECT_EQ(received.epoch.members, reply.epoch.members);
  EXPECT_FALSE(received.epoch.base);
  EXPECT_EQ(received.acknowledged, reply.acknowledged);
}

TEST(Wire, KeysAndValuesMayBeAnyBytes) {
  const std::string bytes("\0\xff\n\"x", 5);
  const auto request = sent(StoreRequest{
      .id = 3,
      .op = StoreRequest::Op::kCompareSet,
      .keys = {bytes, ""},
      .value = bytes,
      .expected = "",
      .amount = -1});
  EXPECT_EQ(request.keys, (std::vector<std::string>{bytes, ""}));
  EXPECT_EQ(request.value, bytes);
  EXPECT_EQ(request.amount, -1);
  EXPECT_EQ(sent(StoreAnswer{.id = 3, .values = {bytes}}).values[0], bytes);
}

TEST(Wire, MessagesMayArriveInAnyPieces) {
  const auto bytes =
      encode(StoreAnswer{.id = 1}) + encode(StoreAnswer{.id = 2});
  MessageReader reader;
  std::vector<uint64_t> ids;
  for (const char byte : bytes) {
    reader.append(std::string_view(&byte, 1));
    while (const auto message = reader.take()) {
      ids.push_back(std::get<StoreAnswer>(*message).id);
    }
  }
  EXPECT_EQ(ids, (std::vector<uint64_t>{1, 2}));
}

TEST(Wire, OtherBytesAreRefused) {
  const auto refuse = [](const std::string& text) {
    MessageReader reader;
    const auto length = static_cast<uint32_t>(text.size());
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    reader.append(bytes + text);
    EXPECT_THROW(reader.take(), WireError) << text;
  };
  refuse("");
  refuse("not CBOR");
  refuse("\x80");         // an empty array
  refuse("\x81\x18\x63"); // of an unknown kind
  auto cut = encode(Report{}).substr(sizeof(uint32_t));
  cut.pop_back();
  refuse(cut);
  MessageReader reader;
  reader.append("\xff\xff\xff\xff");
  EXPECT_THROW(reader.take(), WireError);
}

} // namespace
} // namespace weft::lighthouse
