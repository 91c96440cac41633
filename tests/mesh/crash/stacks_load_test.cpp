// SIGUSR2 in a row while ranks train: what is computed stays what it is.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/communicator.h"
#include "mesh/crash/stacks.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using ::testing::HasSubstr;

/// Standard error goes to a file while this lives.
class ErrorFile {
 public:
  ErrorFile() : before_(dup(STDERR_FILENO)), file_(std::tmpfile()) {
    dup2(fileno(file_), STDERR_FILENO);
  }
  ~ErrorFile() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    std::fclose(file_);
  }
  ErrorFile(const ErrorFile&) = delete;
  ErrorFile& operator=(const ErrorFile&) = delete;

  std::string text() const {
    std::string text;
    char buffer[4096];
    off_t at = 0;
    for (ssize_t size = 1; size > 0; at += size) {
      size = pread(fileno(file_), buffer, sizeof(buffer), at);
      text.append(buffer, static_cast<size_t>(std::max<ssize_t>(size, 0)));
    }
    return text;
  }

 private:
  int before_;
  FILE* file_;
};

/// Steps of four ranks until `is_over`; returns how many there were.
void train(
    test::RankContext& context,
    const std::atomic<bool>& is_over,
    std::atomic<int64_t>& steps) {
  auto group = context.world.group();
  const auto weight = at::ones({64, 64}) / 64;
  auto x = at::full({64, 64}, static_cast<double>(context.rank + 1));
  for (bool goes_on = true; goes_on;) {
    const auto y = at::matmul(x, weight);
    group.all_reduce(y, ReduceOp::kAvg, "activations").wait();
    ASSERT_EQ(y.min().item<float>(), 2.5F);
    ASSERT_EQ(y.max().item<float>(), 2.5F);
    auto end = at::full({1}, is_over && context.rank == 0 ? 1.0 : 0.0);
    group.broadcast(end, 0, "end").wait();
    goes_on = end.item<float>() == 0;
    steps += context.rank == 0;
  }
}

class StacksUnderLoad : public ::testing::TestWithParam<const char*> {};

TEST_P(StacksUnderLoad, AThousandSignalsDoNoHarm) {
  std::string said;
  std::atomic<int64_t> steps{0};
  {
    const ErrorFile errors;
    install_stack_signal(2);
    std::atomic<bool> is_over{false};
    std::thread sender([&] {
      while (steps == 0) {
        std::this_thread::yield();
      }
      for (int i = 0; i < 1000; ++i) {
        kill(getpid(), SIGUSR2);
        std::this_thread::sleep_for(std::chrono::microseconds(500));
      }
      is_over = true;
    });
    test::run_ranks(
        4,
        [&](test::RankContext& context) { train(context, is_over, steps); },
        std::chrono::seconds(60),
        GetParam());
    sender.join();
    // The last report may still be on its way.
    for (size_t size = 0; said.empty() || said.size() != size;) {
      size = said.size();
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      said = errors.text();
    }
  }
  EXPECT_GT(steps, 10);
  EXPECT_THAT(said, HasSubstr("rank=2 stacks of "));
  EXPECT_THAT(said, HasSubstr("weft::mesh::"));
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    StacksUnderLoad,
    ::testing::Values("cpu", "gloo"),
    [](const auto& info) { return std::string(info.param); });

} // namespace
} // namespace weft::mesh
