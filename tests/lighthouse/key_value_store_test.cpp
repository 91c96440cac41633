#include "lighthouse/key_value_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::lighthouse {
namespace {

using Op = StoreRequest::Op;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

StoreRequest request(
    Op op,
    std::vector<std::string> keys = {},
    std::string value = {},
    std::string expected = {}) {
  return {
      .id = 1,
      .op = op,
      .keys = std::move(keys),
      .value = std::move(value),
      .expected = std::move(expected),
      .amount = 2};
}

class KeyValueStoreTest : public ::testing::Test {
 protected:
  StoreAnswer ask(const StoreRequest& asked) {
    const auto deliveries = store_.handle(7, asked);
    EXPECT_EQ(deliveries.size(), 1);
    return deliveries.at(0).answer;
  }

  KeyValueStore store_;
};

TEST_F(KeyValueStoreTest, KeepsValues) {
  ask(request(Op::kSet, {"a"}, "1"));
  EXPECT_THAT(ask(request(Op::kGet, {"a"})).values, ElementsAre("1"));
  EXPECT_EQ(ask(request(Op::kAdd, {"n"})).number, 2);
  EXPECT_EQ(ask(request(Op::kAdd, {"n"})).number, 4);
  EXPECT_EQ(ask(request(Op::kCheck, {"a", "n"})).number, 1);
  EXPECT_EQ(ask(request(Op::kCheck, {"a", "b"})).number, 0);
  EXPECT_EQ(ask(request(Op::kCount)).number, 2);
  EXPECT_THAT(ask(request(Op::kList)).values, ElementsAre("a", "n"));
  EXPECT_EQ(ask(request(Op::kDelete, {"a"})).number, 1);
  EXPECT_EQ(ask(request(Op::kDelete, {"a"})).number, 0);
}

TEST_F(KeyValueStoreTest, ComparesAndSetsAsC10d) {
  const auto set = [&](const char* expected, const char* value) {
    return ask(request(Op::kCompareSet, {"k"}, value, expected)).values.at(0);
  };
  EXPECT_EQ(set("x", "1"), "x"); // not there
  EXPECT_EQ(set("", "1"), "1");
  EXPECT_EQ(set("x", "2"), "1");
  EXPECT_EQ(set("1", "2"), "2");
}

TEST_F(KeyValueStoreTest, AnswersAWaitWhenAllKeysAreThere) {
  EXPECT_THAT(store_.handle(1, request(Op::kWait, {"a", "b"})), IsEmpty());
  EXPECT_THAT(store_.handle(2, request(Op::kGet, {"b"})), IsEmpty());
  EXPECT_EQ(store_.handle(3, request(Op::kSet, {"a"}, "1")).size(), 1);
  const auto deliveries = store_.handle(3, request(Op::kSet, {"b"}, "2"));
  ASSERT_EQ(deliveries.size(), 3);
  EXPECT_EQ(deliveries[0].client, 3);
  EXPECT_EQ(deliveries[1].client, 1);
  EXPECT_EQ(deliveries[2].client, 2);
  EXPECT_THAT(deliveries[2].answer.values, ElementsAre("2"));
  EXPECT_EQ(store_.handle(3, request(Op::kSet, {"b"}, "3")).size(), 1);
}

TEST_F(KeyValueStoreTest, ForgetsAClientThatHasGone) {
  store_.handle(1, request(Op::kWait, {"a"}));
  store_.drop(1);
  EXPECT_EQ(store_.handle(3, request(Op::kSet, {"a"}, "1")).size(), 1);
}

TEST_F(KeyValueStoreTest, TakesAWaitBack) {
  store_.handle(1, request(Op::kWait, {"a"}));
  auto cancel = request(Op::kCancel);
  cancel.amount = 1;
  EXPECT_EQ(store_.handle(2, cancel).size(), 1); // of another client
  EXPECT_EQ(store_.waiting(), 1);
  EXPECT_EQ(store_.handle(1, cancel).size(), 1);
  EXPECT_EQ(store_.waiting(), 0);
}

TEST_F(KeyValueStoreTest, ErasesAnEpoch) {
  for (const char* key : {"1.2/a", "1.2/b", "1.3/a", "1.20/a"}) {
    ask(request(Op::kSet, {key}, "x"));
  }
  store_.handle(1, request(Op::kWait, {"1.2/late"}));
  store_.erase("1.2/");
  EXPECT_EQ(store_.waiting(), 0);
  EXPECT_THAT(ask(request(Op::kList)).values, ElementsAre("1.20/a", "1.3/a"));
}

} // namespace
} // namespace weft::lighthouse
