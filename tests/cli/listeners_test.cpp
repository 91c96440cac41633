#include "cli/doctor/listeners.h"

#include <gtest/gtest.h>

namespace weft::cli {
namespace {

constexpr const char* kRest =
    " 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 "
    "4711 1 0000000000000000 100 0 0 10 0";

std::optional<ListeningSocket> parse(const std::string& local) {
  return parse_socket("   0: " + local + kRest);
}

TEST(Listeners, ReadsAddressesOfBothKinds) {
  const auto loopback = parse("0100007F:1F90");
  ASSERT_TRUE(loopback);
  EXPECT_EQ(loopback->address, "127.0.0.1");
  EXPECT_EQ(loopback->port, 8080);
  EXPECT_EQ(loopback->inode, 4711);
  EXPECT_TRUE(loopback->is_loopback);
  const auto any = parse("00000000:0050");
  ASSERT_TRUE(any);
  EXPECT_EQ(any->address, "0.0.0.0");
  EXPECT_FALSE(any->is_loopback);
  const auto six = parse("00000000000000000000000001000000:0050");
  ASSERT_TRUE(six);
  EXPECT_EQ(six->address, "::1");
  EXPECT_TRUE(six->is_loopback);
  const auto any_six = parse("00000000000000000000000000000000:0050");
  ASSERT_TRUE(any_six);
  EXPECT_EQ(any_six->address, "::");
  EXPECT_FALSE(any_six->is_loopback);
  const auto mapped = parse("0000000000000000FFFF00000100007F:0050");
  ASSERT_TRUE(mapped);
  EXPECT_TRUE(mapped->is_loopback);
  EXPECT_FALSE(parse("0000000000000000FFFF00000100000A:0050")->is_loopback);
}

TEST(Listeners, LeavesOutTheRest) {
  EXPECT_FALSE(parse_socket("  sl  local_address rem_address   st tx_queue"));
  EXPECT_FALSE(parse_socket(""));
  std::string connected = std::string("  1: 0100007F:1F90") + kRest;
  connected.replace(connected.find(" 0A "), 4, " 01 ");
  EXPECT_FALSE(parse_socket(connected));
  EXPECT_FALSE(parse("0100:1F90"));
}

} // namespace
} // namespace weft::cli
