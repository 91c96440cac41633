// One parameter in its two forms, in fake process groups of several ranks.
#include "fsdp/sharded_parameter.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/version.h>

#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/device_mesh.h"
#include "tests/support/expect_error.h"

namespace weft::fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;

using Sizes = std::vector<int64_t>;

/// What the ranks of a fake process group have of one parameter.
class Fixture {
 public:
  Fixture(const Sizes& sizes, int64_t ranks, int64_t rank)
      : ranks_(ranks),
        mesh_(mesh::DeviceMesh::create(
            mesh::World::fake(rank, ranks),
            {ranks},
            {"dp_shard"})),
        whole_(at::rand(sizes)) {
    const auto cut = sizes.empty() ? dtensor::Replicate() : dtensor::Shard(0);
    const dtensor::DTensorSpec sharded(mesh_, {cut});
    handle_ = dtensor::make_dtensor(
        own_rows(whole_), sharded, whole_.sizes(), whole_.strides());
    handle_.set_requires_grad(true);
    parameter_.emplace(
        "layer.weight",
        handle_,
        ShardedPlacement{dtensor::DTensorSpec(), sharded, sharded},
        at::kFloat,
        ranks,
        rank);
    flat_ = at::zeros({parameter_->part_numel()});
    parameter_->move_shard_to(flat_);
  }

  ShardedParameter& parameter() { return *parameter_; }
  at::Tensor handle() { return handle_; }
  const at::Tensor& whole() const { return whole_; }
  at::Tensor local() { return dtensor::dtensor_impl(handle_)->local(); }
  at::Tensor flat() { return flat_; }
  MemoryPool& memory() { return memory_; }

  at::Tensor own_rows(const at::Tensor& whole) const {
    return rows_of(whole, mesh_.coordinate(int64_t{0}));
  }
  at::Tensor rows_of(const at::Tensor& whole, int64_t rank) const {
    if (whole.dim() == 0) {
      return whole.clone();
    }
    const int64_t part = (whole.size(0) + ranks_ - 1) / ranks_;
    const int64_t first = std::min(rank * part, whole.size(0));
    return whole
        .narrow(0, first, std::clamp<int64_t>(whole.size(0) - first, 0, part))
        .clone();
  }
  /// What a gather would bring, its padding not a number.
  at::Tensor parts_of(const at::Tensor& whole) {
    auto parts = at::full({ranks_, parameter_->part_numel()}, NAN);
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const auto rows = rows_of(whole, rank).reshape({-1});
      parts[rank].narrow(0, 0, rows.numel()).copy_(rows);
    }
    return parts;
  }
  void unshard() { parameter_->unshard(parts_of(whole_), memory_); }
  void reshard() { parameter_->reshard(memory_); }

 private:
  int64_t ranks_;
  mesh::DeviceMesh mesh_;
  at::Tensor whole_;
  at::Tensor handle_;
  at::Tensor flat_;
  MemoryPool memory_;
  std::optional<ShardedParameter> parameter_;
};

const std::vector<Sizes>& all_sizes() {
  static const std::vector<Sizes> sizes = {
      {8, 3}, {7, 5}, {1, 17}, {2}, {9}, {5, 2, 3}, {0, 4}, {4, 0}, {}};
  return sizes;
}

template <class Body>
void for_each_case(const Body& body) {
  for (const auto& sizes : all_sizes()) {
    for (const int64_t ranks : {1, 2, 3, 4}) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(
            c10::str(at::IntArrayRef(sizes), " rank ", rank, " of ", ranks));
        Fixture fixture(sizes, ranks, rank);
        body(fixture);
      }
    }
  }
}

TEST(ShardedParameter, HasItsRowsOrAll) {
  for_each_case([](Fixture& f) {
    const auto* handle = f.handle().unsafeGetTensorImpl();
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::equal(f.local(), f.own_rows(f.whole())));
      EXPECT_EQ(
          dtensor::spec_of(f.handle()), f.parameter().placement().sharded);
      f.unshard();
      EXPECT_TRUE(at::equal(f.local(), f.whole()));
      EXPECT_EQ(dtensor::spec_of(f.handle()).mesh_ndim(), 0);
      EXPECT_EQ(f.handle().sizes(), f.whole().sizes());
      f.reshard();
    }
    EXPECT_EQ(f.handle().unsafeGetTensorImpl(), handle);
    EXPECT_EQ(f.handle()._version(), 0);
  });
}

TEST(ShardedParameter, ItsShardIsAViewOfTheMessage) {
  for_each_case([](Fixture& f) {
    const at::NoGradGuard no_grad;
    f.local().add_(1);
    const auto rows = f.own_rows(f.whole() + 1).reshape({-1});
    EXPECT_TRUE(at::equal(f.flat().narrow(0, 0, rows.numel()), rows));
  });
}

TEST(ShardedParameter, KeepsTheNodeThatAccumulatesItsGradient) {
  Fixture f({7, 5}, 3, 1);
  const auto node = torch::autograd::impl::grad_accumulator(f.handle());
  f.unshard();
  EXPECT_EQ(torch::autograd::impl::grad_accumulator(f.handle()), node);
  f.reshard();
  EXPECT_EQ(torch::autograd::impl::grad_accumulator(f.handle()), node);
}

TEST(ShardedParameter, WhatWasSavedOfAllRowsIsValidOnceTheyAreBack) {
  Fixture f({7, 5}, 3, 1);
  f.unshard();
  const auto view = f.local().t();
  const auto* data = f.local().const_data_ptr();
  const auto version = view._version();
  f.reshard();
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  // Before, ops read the address without asking the storage.
  EXPECT_THAT(
      message_of_thrown<c10::Error>([&] { view.sum(); }),
      AllOf(
          HasSubstr("\"layer.weight\" are not all here"), HasSubstr("call()")));
  EXPECT_THAT(
      message_of_thrown<c10::Error>([&] { view.const_data_ptr(); }),
      HasSubstr("layer.weight"));
#endif
  f.unshard();
  EXPECT_TRUE(at::equal(view, f.whole().t()));
  EXPECT_EQ(view._version(), version);
  EXPECT_EQ(f.local().const_data_ptr(), data) << "memory is used again";
}

TEST(ShardedParameter, AWriteToAllRowsIsAnError) {
  Fixture f({7, 5}, 3, 1);
  f.unshard();
  {
    const at::NoGradGuard no_grad;
    f.handle().add_(1);
  }
  EXPECT_THAT(
      message_of_thrown<c10::Error>([&] { f.reshard(); }),
      HasSubstr("\"layer.weight\" was written to while it was unsharded"));
  EXPECT_TRUE(at::equal(f.local(), f.own_rows(f.whole())));
}

TEST(ShardedParameter, SumsOfGradientsAreThoseOfTheRows) {
  for_each_case([](Fixture& f) {
    const auto gradient = at::rand(f.whole().sizes());
    for (const auto& local :
         {gradient,
          gradient.dim() == 2 ? gradient.t().contiguous().t() : gradient}) {
      const auto parts = at::full(f.parts_of(gradient).sizes(), NAN);
      f.parameter().write_gradient(local, 4.0, parts);
      const auto expected = f.parts_of(gradient / 4).nan_to_num(0);
      EXPECT_TRUE(at::equal(parts, expected));
      const auto own = f.parameter().sharded_gradient(
          parts[dtensor::spec_of(f.handle()).mesh().coordinate(int64_t{0})],
          f.parameter().placement().sharded);
      EXPECT_EQ(own.sizes(), f.whole().sizes());
      EXPECT_TRUE(at::equal(
          dtensor::dtensor_impl(own)->local(), f.own_rows(gradient / 4)));
    }
  });
}

TEST(MemoryPool, KeepsNoMoreThanWasInUseAtOnce) {
  MemoryPool pool;
  auto a = pool.take(1000, at::kCPU);
  auto b = pool.take(2000, at::kCPU);
  const auto* first = a.get();
  pool.give(std::move(a), 1000);
  a = pool.take(1000, at::kCPU);
  EXPECT_EQ(a.get(), first);
  pool.give(std::move(a), 1000);
  pool.give(std::move(b), 2000);
  EXPECT_EQ(pool.bytes_in_use(), 0);
  auto c = pool.take(1500, at::kCPU);
  EXPECT_EQ(pool.peak_bytes_in_use(), 3000);
  EXPECT_LE(pool.bytes_kept() + pool.bytes_in_use(), 3000);
  pool.give(std::move(c), 1500);
}

} // namespace
} // namespace weft::fsdp
