#include "testkit/rank_store.h"

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::testkit {
namespace {

using std::chrono::milliseconds;

TEST(RankStore, WakesWhoHasAllKeysThatItWaitsFor) {
  const auto store = c10::make_intrusive<RankStore>();
  auto one =
      std::async(std::launch::async, [&] { return store->get_to_str("one"); });
  auto all = std::async(std::launch::async, [&] {
    store->wait({"one", "two", "three", "four", "five"}, milliseconds(0));
    return store->multiGet({"five", "one"});
  });
  const std::string five = "5";
  store->multiSet({"two", "five"}, {{'2'}, {five.begin(), five.end()}});
  store->add("three", 3);
  store->append("four", {'4'});
  EXPECT_EQ(all.wait_for(milliseconds(20)), std::future_status::timeout);
  EXPECT_EQ(one.wait_for(milliseconds(0)), std::future_status::timeout);
  const std::string none;
  static_cast<c10d::Store&>(*store).compareSet("one", none, "1");
  EXPECT_EQ(one.get(), "1");
  EXPECT_THAT(
      all.get(),
      ::testing::ElementsAre(
          ::testing::ElementsAre('5'), ::testing::ElementsAre('1')));
}

TEST(RankStore, AWaitEndsAfterItsTimeAndNamesTheKeys) {
  const auto store = c10::make_intrusive<RankStore>();
  store->setTimeout(milliseconds(10));
  static_cast<c10d::Store&>(*store).set("here", "1");
  try {
    store->wait({"here", "absent"});
    FAIL() << "it returned";
  } catch (const c10::DistStoreError& error) {
    EXPECT_THAT(
        error.what_without_backtrace(),
        ::testing::HasSubstr("Wait timeout after 10ms, keys: here, absent"));
  }
  EXPECT_THROW(store->get("absent"), c10::DistStoreError);
}

} // namespace
} // namespace weft::testkit
