#include "mesh/backends/paired_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/backends/fake_backend.h"
#include "mesh/bootstrap/debug_level.h"
#include "mesh/communicator/communicator.h"
#include "mesh/error/error.h"
#include "tests/support/expect_error.h"

namespace weft::mesh {
namespace {

using ::testing::HasSubstr;

struct Barrier final : BackendWork {
  explicit Barrier(std::string text) : refusal(std::move(text)) {}
  void wait() override {
    if (!refusal.empty()) {
      throw std::runtime_error(refusal);
    }
  }
  bool is_completed() const override { return true; }
  bool when_completed(std::function<void()>) override { return false; }
  std::string refusal;
};

/// Counts what it is asked to do, for tensors of one device type.
class Counting final : public Backend {
 public:
  explicit Counting(c10::DeviceType type)
      : Backend({.name = "pair", .rank = 0, .ranks = {0, 1}}), type_(type) {}

  std::string_view kind() const override {
    return type_ == c10::DeviceType::CPU ? "host" : "device";
  }
  bool supports(c10::DeviceType type) const override { return type == type_; }

  using Result = std::unique_ptr<BackendWork>;
  using Tensor = at::Tensor;
  Result all_reduce(const Tensor&, ReduceOp) override { return count(); }
  Result all_gather(const Tensor&, const Tensor&, const Counts&) override {
    return count();
  }
  Result reduce_scatter(const Tensor&, const Tensor&, const Counts&, ReduceOp)
      override {
    return count();
  }
  Result all_to_all(const Tensor&, const Tensor&, const Counts&, const Counts&)
      override {
    return count();
  }
  Result broadcast(const Tensor&, int64_t) override { return count(); }
  Result barrier() override {
    ++barriers;
    identity_at_barrier = identity();
    return std::make_unique<Barrier>(refusal);
  }
  void abort() noexcept override { ++aborts; }
  GroupFailure failure() const override { return {failure_}; }

  int calls = 0;
  int barriers = 0;
  int aborts = 0;
  uint64_t identity_at_barrier = 0;
  /// What a barrier fails with.
  std::string refusal;
  std::string failure_;

 private:
  Result count() {
    ++calls;
    return nullptr;
  }
  c10::DeviceType type_;
};

struct PairedBackend : ::testing::Test {
  std::shared_ptr<Counting> device =
      std::make_shared<Counting>(c10::DeviceType::Meta);
  std::shared_ptr<Counting> host =
      std::make_shared<Counting>(c10::DeviceType::CPU);
  Communicator group{make_paired_backend(device, host)};
};

TEST_F(PairedBackend, SendsATensorWhereItLies) {
  const auto there = at::ones({4}, at::kMeta);
  const auto here = at::ones({4});
  for (const auto& x : {there, here}) {
    group.all_reduce(x);
    group.all_gather(at::empty({8}, x.options()), x);
    group.reduce_scatter(at::empty({2}, x.options()), x);
    group.all_to_all({x, x}, {x, x});
    group.broadcast(x, 0);
  }
  EXPECT_EQ(device->calls, 5);
  EXPECT_EQ(host->calls, 5);
  EXPECT_EQ(group.backend(), "device");
}

TEST_F(PairedBackend, BarriersAreTheHosts) {
  group.barrier();
  EXPECT_EQ(host->barriers, 1);
  EXPECT_EQ(device->barriers, 0);
}

// NCCL itself would hang, or mix up values.
TEST_F(PairedBackend, InDetailRanksAgreeBeforeTheDeviceBegins) {
  const auto level = get_debug_level();
  set_debug_level(DebugLevel::kDetail);
  const auto there = at::ones({4}, at::kMeta);
  group.all_reduce(there, ReduceOp::kSum, "wq");
  EXPECT_EQ(host->barriers, 1);
  EXPECT_EQ(device->calls, 1);
  const auto identity = host->identity_at_barrier;
  group.all_reduce(there, ReduceOp::kSum, "wk");
  EXPECT_NE(host->identity_at_barrier, identity);
  host->refusal = "another call";
  EXPECT_THAT(
      test::message_of_thrown<CommError>([&] { group.all_reduce(there); }),
      HasSubstr("another call"));
  EXPECT_EQ(device->calls, 2);
  set_debug_level(level);
}

TEST_F(PairedBackend, OneCollectiveHasOneDevice) {
  EXPECT_THAT(
      test::message_of_thrown<CommError>(
          [&] { group.all_gather(at::empty({8}), at::ones({4}, at::kMeta)); }),
      HasSubstr("The output is on cpu, the input on meta"));
}

TEST_F(PairedBackend, FailsWithEitherAndHangsUpBoth) {
  device->failure_ = "NCCL failed";
  EXPECT_THAT(
      test::message_of_thrown<CommError>([&] { group.check(); }),
      HasSubstr("NCCL failed"));
  EXPECT_EQ(device->aborts, 1);
  EXPECT_EQ(host->aborts, 1);
}

} // namespace
} // namespace weft::mesh
