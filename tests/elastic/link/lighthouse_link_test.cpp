#include "elastic/link/lighthouse_link.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/error/error.h"
#include "tests/elastic/launcher.h"
#include "tests/support/expect_error.h"

namespace weft::elastic {
namespace {

using mesh::CommError;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using weft::test::message_of_thrown;

TEST(LighthouseLink, ItsStoreIsAsC10ds) {
  test::Launcher launcher(1);
  const auto store = launcher.connect(0, 1)->store();
  store->setTimeout(seconds(10));
  const std::vector<uint8_t> bytes{0, 255, 7};
  store->set("key", bytes);
  EXPECT_EQ(store->get("key"), bytes);
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_EQ(store->add("n", -1), 2);
  EXPECT_TRUE(store->check({"key", "n"}));
  EXPECT_FALSE(store->check({"key", "other"}));
  EXPECT_EQ(store->getNumKeys(), 2);
  EXPECT_THAT(store->listKeys(), UnorderedElementsAre("key", "n"));
  EXPECT_EQ(store->compareSet("new", {}, bytes), bytes);
  EXPECT_TRUE(store->deleteKey("key"));
  EXPECT_FALSE(store->deleteKey("key"));
  const std::string large(3'000'000, 'x');
  store->set("large", large);
  EXPECT_EQ(store->get_to_str("large"), large);
}

TEST(LighthouseLink, AWaitEndsByItsKeyAndByItsTimeout) {
  test::Launcher launcher(1);
  const auto one = launcher.connect(0, 1)->store();
  const auto link = launcher.connect(1, 2);
  const auto other = link->store();
  EXPECT_THAT(
      message_of_thrown<CommError>(
          [&] { one->wait({"late"}, milliseconds(10)); }),
      HasSubstr("[lighthouse] no worker has set the keys late within 0.01 s"));
  // Requests of one connection do not wait for each other.
  std::thread waiting([&] { other->wait({"late"}, seconds(30)); });
  other->set("early", std::string("1"));
  one->set("late", std::string("1"));
  waiting.join();
}

TEST(LighthouseLink, EndsWithItsLauncher) {
  auto launcher = std::make_unique<test::Launcher>(1);
  const auto link = launcher->connect(0, 1);
  std::thread waiting([&] {
    EXPECT_THAT(
        message_of_thrown<CommError>(
            [&] { link->store()->wait({"never"}, seconds(60)); }),
        HasSubstr("the connection to weftrun is closed"));
  });
  launcher.reset();
  waiting.join();
  EXPECT_THROW(link->store()->check({"key"}), CommError);
}

TEST(LighthouseLink, WithoutWeftrunThereIsNone) {
  EXPECT_THAT(
      message_of_thrown<mesh::UsageError>([] { LighthouseLink::from_env(); }),
      HasSubstr("Start it with weftrun --replica-size N"));
}

} // namespace
} // namespace weft::elastic
