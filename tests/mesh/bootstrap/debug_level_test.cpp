#include "mesh/bootstrap/debug_level.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/debug.h>

#include "mesh/bootstrap/env.h"
#include "mesh/error/error.h"
#include "tests/support/expect_error.h"

namespace weft::mesh {
namespace {

using test::message_of_thrown;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kVariable = "TORCH_DISTRIBUTED_DEBUG";

/// Leaves level and variable as they were.
class DebugLevelTest : public ::testing::Test {
 protected:
  void SetUp() override { set(""); }
  void TearDown() override {
    if (value_) {
      set(*value_);
    } else {
      env::unset(kVariable);
    }
    set_debug_level(level_);
  }

  static void set(const char* value) {
    env::unset(kVariable);
    env::set_default(kVariable, value);
  }
  static void set(const std::string& value) { set(value.c_str()); }

 private:
  DebugLevel level_ = get_debug_level();
  std::optional<std::string> value_ = env::get(kVariable);
};

TEST_F(DebugLevelTest, IsLibtorchsOwn) {
  set_debug_level(DebugLevel::kDetail);
  EXPECT_EQ(c10d::debug_level(), c10d::DebugLevel::Detail);
  c10d::setDebugLevel(c10d::DebugLevel::Info);
  EXPECT_EQ(get_debug_level(), DebugLevel::kInfo);
  set_debug_level(DebugLevel::kOff);
  EXPECT_EQ(c10d::debug_level(), c10d::DebugLevel::Off);
}

TEST_F(DebugLevelTest, ComesFromTheEnvironmentInAnyCase) {
  const std::vector<std::pair<std::string, DebugLevel>> cases{
      {"INFO", DebugLevel::kInfo},
      {"Detail", DebugLevel::kDetail},
      {"off", DebugLevel::kOff},
      {"info", DebugLevel::kInfo},
      {"DETAIL", DebugLevel::kDetail},
      {"OFF", DebugLevel::kOff}};
  for (const auto& [value, level] : cases) {
    set(value);
    set_debug_level_from_env();
    EXPECT_EQ(get_debug_level(), level) << value;
  }
}

TEST_F(DebugLevelTest, StaysWithoutTheVariable) {
  set_debug_level(DebugLevel::kInfo);
  set_debug_level_from_env();
  EXPECT_EQ(get_debug_level(), DebugLevel::kInfo);
}

TEST_F(DebugLevelTest, AnyOtherValueIsRefusedNamingTheVariable) {
  set_debug_level(DebugLevel::kInfo);
  for (const char* value : {"1", "VERBOSE", "INFO ", "DETAILS"}) {
    set(value);
    EXPECT_THAT(
        message_of_thrown<UsageError>([] { set_debug_level_from_env(); }),
        AllOf(
            HasSubstr(std::string("TORCH_DISTRIBUTED_DEBUG=") + value),
            HasSubstr("OFF, INFO or DETAIL")));
    EXPECT_EQ(get_debug_level(), DebugLevel::kInfo);
  }
}

TEST_F(DebugLevelTest, HasNames) {
  EXPECT_EQ(to_string(DebugLevel::kOff), "OFF");
  EXPECT_EQ(to_string(DebugLevel::kInfo), "INFO");
  EXPECT_EQ(to_string(DebugLevel::kDetail), "DETAIL");
}

} // namespace
} // namespace weft::mesh
