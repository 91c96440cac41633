// What a user may get wrong: each a c10::ValueError on every rank that names
// the op, its operands with their specs, the rank and the way out. None hangs:
// run_ranks() would run into its timeout.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::kR;
using dtensor::test::random;
using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

// What a bad-input test has on each of two ranks.
struct Ranks {
  RankContext& self;
  mesh::DeviceMesh mesh;

  at::Tensor x(Placement placement, std::vector<int64_t> sizes = {4, 6}) const {
    return distributed(random(sizes, 1), mesh, {placement});
  }

  // Every part of `text`, and the rank.
  template <class Body>
  void expect_refused(const Body& body, const std::vector<std::string>& text)
      const {
    const auto message = message_of_thrown<c10::ValueError>(body);
    for (const auto& part : text) {
      EXPECT_THAT(message, HasSubstr(part));
    }
    EXPECT_THAT(message, HasSubstr("rank " + std::to_string(self.rank) + "/2"));
  }
};

void on_two_ranks(const std::function<void(const Ranks&)>& body) {
  run_ranks(2, [&](RankContext& self) {
    body(Ranks{self, self.mesh({2}, {"tp"})});
    // Nobody has left the others behind.
    auto flag = at::ones({1});
    self.mesh({2}, {"end"}).group(0).all_reduce(flag, ReduceOp::kSum).wait();
    EXPECT_EQ(flag.item<float>(), 2);
  });
}

TEST(BadInput, MixedPlainAndDistributedOperands) {
  on_two_ranks([](const Ranks& ranks) {
    const auto x = ranks.x(Shard(0));
    const auto plain = at::ones({4, 6}, at::kDouble);
    const std::vector<std::string> remedy{
        "a plain tensor", "[S(0)]", "distribute_tensor()", "from_local()"};
    const auto refused = [&](const char* op, const auto& body) {
      auto text = remedy;
      text.push_back(op);
      ranks.expect_refused(body, text);
    };
    refused("[aten::add]", [&] { x + plain; });
    refused("[aten::add]", [&] { plain + x; });
    refused("[aten::mm]", [&] { x.mm(at::ones({6, 2}, at::kDouble)); });
    refused("[aten::cat]", [&] { at::cat({x, plain}); });
    refused("[aten::mul_]", [&] { x.detach().mul_(plain); });
    refused("[aten::where]", [&] { at::where(plain.gt(0), x, x); });
    refused("[aten::_foreach_add]", [&] {
      at::_foreach_add(at::TensorList({x}), at::TensorList({plain}));
    });
    // Kernels above autograd.
    refused("[linear]", [&] { torch::linear(plain, x); });
    refused("[linear]", [&] { torch::linear(x, plain); });
    refused("[norm]", [&] {
      torch::layer_norm(x, {6}, at::ones({6}, at::kDouble));
    });
    refused("[embedding]", [&] { at::embedding(x, at::ones({2}, at::kLong)); });
    refused("[cross_entropy]", [&] {
      torch::nn::functional::cross_entropy(x, at::ones({4}, at::kLong));
    });
    const auto q = ranks.x(Shard(0), {2, 2, 4, 4});
    refused("[scaled_dot_product_attention]", [&] {
      at::scaled_dot_product_attention(
          q, q, at::ones({2, 2, 4, 4}, at::kDouble));
    });
    // A number in a tensor is no such case.
    EXPECT_NO_THROW(x * at::full({}, 2.0, at::kDouble));
  });
}

TEST(BadInput, DifferentMeshes) {
  on_two_ranks([](const Ranks& ranks) {
    const auto other = ranks.self.mesh({2}, {"dp"});
    const auto x = ranks.x(Shard(0));
    const auto y = distributed(random({4, 6}, 2), other, {kR});
    ranks.expect_refused(
        [&] { x + y; },
        {"[aten::add]", "mixes meshes", "tp=2", "dp=2", "S(0)"});
    ranks.expect_refused(
        [&] { torch::linear(x, y); },
        {"[linear]", "mixes meshes", "tp=2", "dp=2", "[S(0)]", "[R]"});
  });
}

TEST(BadInput, ValuesThatNoRankHas) {
  on_two_ranks([](const Ranks& ranks) {
    const auto partial = ranks.x(Partial(), {1});
    ranks.expect_refused(
        [&] { partial.item(); },
        {"[item]", "DTensor [1] Double [P(sum)] on tp=2", "full_tensor(x)"});
    const auto cut = ranks.x(Shard(0), {1});
    ranks.expect_refused(
        [&] { cut.item(); },
        {"[item]", "DTensor [1] Double [S(0)] on tp=2", "full_tensor(x)"});
    ranks.expect_refused(
        [&] { static_cast<void>(cut.gt(0).is_nonzero()); }, {"[item]"});
    EXPECT_NO_THROW(ranks.x(Partial(), {}).item());
    EXPECT_NO_THROW(ranks.x(kR, {1}).item());
  });
}

TEST(BadInput, DataPointers) {
  on_two_ranks([](const Ranks& ranks) {
    const auto x = ranks.x(Shard(0));
    const std::vector<std::function<void()>> reads{
        [&] { x.data_ptr(); },
        [&] { x.data_ptr<double>(); },
        [&] { x.const_data_ptr<double>(); },
        [&] { x.accessor<double, 2>(); },
        [&] { x.storage().data(); }};
    for (const auto& read : reads) {
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>(read),
          AllOf(
              HasSubstr("a DTensor has no data of its own"),
              HasSubstr("weft::dtensor::to_local(x)")));
    }
  });
}

TEST(BadInput, InPlaceOpsThatWouldChangeThePlacement) {
  on_two_ranks([](const Ranks& ranks) {
    auto partial = ranks.x(Partial());
    ranks.expect_refused(
        [&] { partial.relu_(); },
        {"[aten::relu_]", "[4, 6] [P(sum)]", "Redistribute it first"});
    auto cut = ranks.x(Shard(1));
    ranks.expect_refused(
        [&] { cut.cumsum_(1); },
        {"[aten::cumsum_]", "[4, 6] [S(1)]", "Redistribute it first"});
    ranks.expect_refused(
        [&] {
          cut.resize_({2, 12});
        },
        {"[aten::resize_]", "[S(1)]"});
    ranks.expect_refused([&] { cut.t_(); }, {"[aten::t_]", "[S(1)]"});
  });
}

TEST(BadInput, WritesToTensorsWhoseElementsShareMemory) {
  on_two_ranks([](const Ranks& ranks) {
    // One element a rank: no rank sees the overlap in its part.
    auto x = ranks.x(Replicate(), {1, 6}).expand({2, 6});
    ranks.expect_refused(
        [&] { x.add_(1); },
        {"[aten::add_]", "[2, 6]", "share memory", "clone()"});
  });
}

TEST(BadInput, ViewsThatDoNotFit) {
  on_two_ranks([](const Ranks& ranks) {
    const auto x = ranks.x(Shard(0), {5, 6});
    ranks.expect_refused(
        [&] {
          x.view({7, 5});
        },
        {"[aten::view]", "[5, 6] [S(0)]"});
    ranks.expect_refused([&] { x.view({-1, 7}); }, {"[aten::view]", "[S(0)]"});
    ranks.expect_refused(
        [&] {
          x.expand({3, 5, 7});
        },
        {"[aten::expand]", "[S(0)]"});
    // No view of a transposed whole has these sizes.
    ranks.expect_refused([&] { x.t().view({30}); }, {"[aten::view]"});
  });
}

at::Tensor double_it(const at::Tensor& x) {
  return x * 2;
}

TORCH_LIBRARY(weft_bad_input_test, library) {
  library.def("no_rule(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(weft_bad_input_test, CPU, library) {
  library.impl("no_rule", &double_it);
}

TEST(BadInput, OpsWithoutARule) {
  on_two_ranks([](const Ranks& ranks) {
    const auto op = c10::Dispatcher::singleton()
                        .findSchemaOrThrow("weft_bad_input_test::no_rule", "")
                        .typed<decltype(double_it)>();
    ranks.expect_refused(
        [&] { op.call(ranks.x(Shard(0))); },
        {"[weft_bad_input_test::no_rule] has no sharding rule",
         "[4, 6] [S(0)]",
         "to_local()"});
  });
}

TEST(BadInput, PartsThatDifferBetweenRanks) {
  on_two_ranks([](const Ranks& ranks) {
    FromLocalOptions checked;
    checked.run_check = true;
    const auto rows = at::ones({ranks.self.rank + 1, 2});
    ranks.expect_refused(
        [&] { from_local(rows, ranks.mesh, {Shard(0)}, checked); },
        {"[from_local]", "size"});
    const auto dims = ranks.self.rank == 0 ? at::ones({2}) : at::ones({2, 1});
    ranks.expect_refused(
        [&] { from_local(dims, ranks.mesh, {Shard(0)}, checked); },
        {"[from_local]"});
    const auto placement = ranks.self.rank == 0 ? Shard(0) : Shard(1);
    ranks.expect_refused(
        [&] {
          from_local(at::ones({2, 2}), ranks.mesh, {placement}, checked);
        },
        {"[from_local]", "S("});
    const auto values = at::full({2}, static_cast<double>(ranks.self.rank));
    ranks.expect_refused(
        [&] { from_local(values, ranks.mesh, {kR}, checked); },
        {"[from_local]"});
  });
}

TEST(BadInput, SizesThatDoNotFitParts) {
  on_two_ranks([](const Ranks& ranks) {
    FromLocalOptions options;
    options.sizes = std::vector<int64_t>{7, 2};
    ranks.expect_refused(
        [&] {
          from_local(at::ones({2, 2}), ranks.mesh, {Shard(0)}, options);
        },
        {"[from_local]", "[2, 2]", "[7, 2]", "S(0)"});
    ranks.expect_refused(
        [&] {
          from_local(at::ones({2, 2}), ranks.mesh, {Shard(0), kR});
        },
        {"[spec]", "one placement per mesh dim"});
    EXPECT_THROW(ranks.x(Shard(2)), c10::ValueError);
  });
}

TEST(BadInput, WrongOutTensors) {
  on_two_ranks([](const Ranks& ranks) {
    const auto x = ranks.x(Shard(0));
    auto out = ranks.x(Shard(0), {3, 6});
    ranks.expect_refused(
        [&] { at::add_out(out, x, x); }, {"[aten::add]", "[3, 6]", "[4, 6]"});
    auto plain = at::empty({4, 6}, at::kDouble);
    ranks.expect_refused([&] { at::add_out(plain, x, x); }, {"[aten::add]"});
  });
}

TEST(BadInput, PlainGradientsOfLeaves) {
  on_two_ranks([](const Ranks& ranks) {
    const auto x =
        distributed(random({4, 6}, 1).requires_grad_(), ranks.mesh, {Shard(0)});
    const auto y = x * 2;
    ranks.expect_refused(
        [&] {
          y.backward(at::ones({4, 6}, at::kDouble));
        },
        {"[backward]",
         "DTensor [4, 6] Double [S(0)] on tp=2",
         "plain tensor of sizes [4, 6]",
         "from_local"});
  });
}

TEST(BadInput, PlainGradients) {
  on_two_ranks([](const Ranks& ranks) {
    auto x = ranks.x(Shard(0)).requires_grad_();
    const auto y = redistribute(x, {kR});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          y.backward(at::ones({4, 6}, at::kDouble));
        }),
        AllOf(
            HasSubstr("plain tensor of sizes [4, 6]"),
            HasSubstr("from_local")));
  });
}

TEST(BadInput, TensorsWithoutDenseValues) {
  on_two_ranks([](const Ranks& ranks) {
    const auto sparse = random({4, 6}, 1).to_sparse();
    const auto place = [&](const at::Tensor& tensor) {
      return [&] { distribute_tensor(tensor, ranks.mesh, {Shard(0)}); };
    };
    const auto take = [&](const at::Tensor& tensor, bool run_check = false) {
      return [&, run_check] {
        from_local(tensor, ranks.mesh, {Shard(0)}, {.run_check = run_check});
      };
    };
    const at::Tensor none;
    ranks.expect_refused(
        place(none), {"[distribute_tensor]", "an undefined tensor"});
    ranks.expect_refused(
        place(sparse),
        {"[distribute_tensor]", "a tensor of layout Sparse", "to_dense()"});
    ranks.expect_refused(take(none), {"[from_local]", "an undefined tensor"});
    ranks.expect_refused(
        take(sparse, true), {"[from_local]", "a tensor of layout Sparse"});
    // On one rank alone.
    const auto mixed = ranks.self.rank == 0 ? sparse : random({4, 6}, 1);
    ranks.expect_refused(
        place(mixed), {"[distribute_tensor]", "rank 0 has a tensor of layout"});
  });
}

} // namespace
} // namespace weft::dtensor
