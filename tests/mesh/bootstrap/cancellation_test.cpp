#include "mesh/bootstrap/cancellation.h"

#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/support/expect_error.h"

namespace weft::mesh {
namespace {

using test::message_of_thrown;

std::thread::id thread_of_run(const Cancellation& cancellation) {
  return cancellation.run([] { return std::this_thread::get_id(); });
}

TEST(Cancellation, OneThreadRunsWhatComesOneAfterTheOther) {
  const Cancellation cancellation;
  const auto first = thread_of_run(cancellation);
  EXPECT_NE(first, std::this_thread::get_id());
  EXPECT_EQ(thread_of_run(cancellation), first);
  EXPECT_THROW(
      cancellation.run([]() -> int { throw std::runtime_error("no"); }),
      std::runtime_error);
  EXPECT_EQ(thread_of_run(cancellation), first);
}

TEST(Cancellation, RunsAtTheSameTimeHaveAThreadEach) {
  const Cancellation cancellation;
  std::promise<void> begun, arrived;
  auto other = std::async(std::launch::async, [&] {
    return cancellation.run([&] {
      begun.set_value();
      arrived.get_future().wait();
      return std::this_thread::get_id();
    });
  });
  begun.get_future().wait();
  const auto id = cancellation.run([&] {
    arrived.set_value();
    return std::this_thread::get_id();
  });
  EXPECT_NE(other.get(), id);
}

TEST(Cancellation, ABodyThatBlocksIsLeftBehind) {
  auto released = std::make_shared<std::promise<void>>();
  auto ended = std::make_shared<std::promise<void>>();
  auto has_ended = ended->get_future();
  {
    const Cancellation cancellation;
    std::promise<void> begun;
    std::thread canceller([&] {
      begun.get_future().wait();
      cancellation.cancel("the group is gone");
    });
    EXPECT_EQ(
        message_of_thrown<CommError>([&] {
          cancellation.run([&begun, released, ended] {
            begun.set_value();
            released->get_future().wait();
            ended->set_value();
          });
        }),
        "the group is gone");
    canceller.join();
    EXPECT_EQ(
        message_of_thrown<CommError>([&] { thread_of_run(cancellation); }),
        "the group is gone");
  }
  EXPECT_EQ(
      has_ended.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  released->set_value();
  has_ended.get();
}

} // namespace
} // namespace weft::mesh
