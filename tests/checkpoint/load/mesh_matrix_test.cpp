// From every mesh to every other: the tensors are the same, bitwise.

#include <array>
#include <filesystem>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/format/hash.h"
#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"
#include "checkpoint/store/store.h"
#include "ddp/zero/zero_redundancy_optimizer.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace weft::checkpoint {
namespace {

namespace fs = std::filesystem;
using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;
using dtensor::StateDict;
using dtensor::StridedShard;
using test::RankContext;
using test::run_ranks;

struct Grid2d {
  int dp;
  int tp;
};
constexpr std::array kMeshes{
    Grid2d{1, 1},
    Grid2d{2, 1},
    Grid2d{1, 2},
    Grid2d{2, 2},
    Grid2d{4, 1},
    Grid2d{1, 4},
    Grid2d{3, 1}};

std::string name_of(const Grid2d& grid) {
  return std::to_string(grid.dp) + "x" + std::to_string(grid.tp);
}

/// Any bits are values of most dtypes: each byte depends on its place.
at::Tensor patterned(at::IntArrayRef sizes, at::ScalarType dtype, int seed) {
  auto tensor = at::empty(sizes, dtype);
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) {
    const auto mixed = (i + 1) * 2654435761U + static_cast<size_t>(seed) * 977U;
    bytes[i] = static_cast<unsigned char>(mixed >> 11U);
    if (dtype == at::kBool) {
      bytes[i] &= 1U;
    }
  }
  return tensor;
}

struct Entry {
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
};

/// Dims that no mesh divides, that are smaller than one, empty and none.
std::map<std::string, Entry> entries() {
  std::map<std::string, Entry> all;
  const std::vector<std::vector<int64_t>> sizes{
      {6}, {6, 4}, {5, 7}, {3, 2, 5}, {1, 9}, {2, 3}, {0, 3}, {}};
  const std::vector<at::ScalarType> dtypes{
      at::kFloat,
      at::kBFloat16,
      at::kHalf,
      at::kDouble,
      at::kLong,
      at::kByte,
      at::kBool,
      at::kFloat8_e4m3fn};
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (size_t k = 0; k < 3; ++k) {
      const auto dtype = dtypes[(3 * i + k) % dtypes.size()];
      all["t" + std::to_string(i) + "_" + std::to_string(k)] = {
          sizes[i], dtype};
    }
  }
  return all;
}

Placements placements_for(
    const mesh::DeviceMesh& mesh,
    const Entry& entry,
    size_t number) {
  const auto dims = static_cast<int64_t>(entry.sizes.size());
  std::vector<Placements> choices{{Replicate(), Replicate()}};
  if (dims >= 1) {
    std::vector<int64_t> last_has_all(mesh.size(0), 0);
    last_has_all.back() = entry.sizes[0];
    choices.push_back({Replicate(), Shard(0)});
    choices.push_back({Shard(0), Replicate()});
    choices.push_back({Shard(0), Shard(0)});
    choices.push_back({StridedShard(0, 2), Replicate()});
    choices.push_back({Replicate(), StridedShard(0, 3)});
    choices.push_back({StridedShard(0, mesh.size(1)), Shard(0)});
    choices.push_back({Shard(0, last_has_all), Replicate()});
  }
  if (dims >= 2) {
    choices.push_back({Shard(1), Shard(0)});
    choices.push_back({StridedShard(1, 2), Shard(0)});
    choices.push_back({StridedShard(0, 2), StridedShard(1, 2)});
    choices.push_back({Replicate(), Shard(1)});
  }
  return choices[number % choices.size()];
}

StateDict
make_tensors(const mesh::DeviceMesh& mesh, size_t shift, bool with_values) {
  StateDict dict;
  size_t number = shift;
  int seed = 1;
  for (const auto& [name, entry] : entries()) {
    auto whole = patterned(entry.sizes, entry.dtype, seed++);
    if (!with_values) {
      whole.zero_();
    }
    dict[name] = dtensor::distribute_tensor(
        whole,
        mesh,
        placements_for(mesh, entry, number++),
        /*src_data_rank=*/std::nullopt);
  }
  dict["plain"] =
      with_values ? patterned({11}, at::kInt, 99) : at::zeros({11}, at::kInt);
  // Its part is not contiguous.
  const auto columns =
      (with_values ? patterned({7, 5}, at::kFloat, 98) : at::zeros({7, 5}))
          .t()
          .contiguous()
          .t();
  dict["columns"] = dtensor::distribute_tensor(
      columns, mesh, {Replicate(), Shard(1)}, std::nullopt);
  return dict;
}

/// Four layers and their moments, which the ranks of dp divide.
struct ZeroPart {
  ZeroPart(const mesh::DeviceMesh& mesh, bool even_split)
      : model(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3)) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) {
      parameter.fill_(0.5);
    }
    optimizer = ddp::make_zero<torch::optim::AdamW>(
        model->parameters(),
        torch::optim::AdamWOptions(0.1),
        mesh["dp"],
        {.partition = even_split ? ddp::ZeroPartition::kEvenSplit
                                 : ddp::ZeroPartition::kWholeParameters});
  }

  void train() {
    double value = 0.25;
    for (auto& parameter : model->parameters()) {
      parameter.mutable_grad() = at::arange(parameter.numel(), at::kFloat)
                                     .mul_(value)
                                     .view_as(parameter);
      value += 0.5;
    }
    optimizer->step();
  }

  StateDict state(const mesh::DeviceMesh& mesh) {
    StateDict dict;
    for (const auto& [key, tensor] : optimizer->state_dict(*model)) {
      dict[key] = dtensor::on_mesh(tensor, mesh);
    }
    return dict;
  }

  torch::nn::Sequential model;
  std::unique_ptr<ddp::ZeroRedundancyOptimizer> optimizer;
};

using Hashes = std::map<std::string, uint64_t>;

/// Returns the hash of every full tensor.
Hashes hashes_of(const StateDicts& dicts) {
  Hashes hashes;
  for (const auto& [part, dict] : dicts) {
    for (const auto& [name, tensor] : dict) {
      const auto whole =
          (dtensor::is_dtensor(tensor) ? dtensor::full_tensor(tensor) : tensor)
              .contiguous();
      hashes[part + "." + name] = hash(std::span(
          static_cast<const std::byte*>(whole.const_data_ptr()),
          whole.nbytes()));
    }
  }
  return hashes;
}

class MeshMatrix : public ::testing::TestWithParam<Grid2d> {
 protected:
  test::TempFolder scratch_;
};

TEST_P(MeshMatrix, EveryTensorHasTheSameHashOnEveryMesh) {
  const auto from = GetParam();
  Hashes expected;
  run_ranks(from.dp * from.tp, [&](RankContext& self) {
    const auto mesh = self.mesh({from.dp, from.tp}, {"dp", "tp"});
    ZeroPart zero(mesh, /*even_split=*/false);
    zero.train();
    const StateDicts dicts{
        {"model", make_tensors(mesh, 0, true)},
        {"optimizer", zero.state(mesh)}};
    save(scratch_.path(), dicts, {.step = 1, .fsync = false});
    const auto hashes = hashes_of(dicts);
    if (self.rank == 0) {
      expected = hashes;
    }
  });
  ASSERT_EQ(expected.size(), entries().size() + 2 + 4 * (3 + 4));
  // Not by accident: the tensors differ from each other and from zeros.
  std::set<uint64_t> distinct;
  for (const auto& [name, value] : expected) {
    distinct.insert(value);
  }
  EXPECT_GT(distinct.size(), entries().size() / 2);
  size_t shift = 1;
  for (const auto& to : kMeshes) {
    SCOPED_TRACE("to " + name_of(to));
    run_ranks(to.dp * to.tp, [&](RankContext& self) {
      const auto mesh = self.mesh({to.dp, to.tp}, {"dp", "tp"});
      for (const auto read_by : {ReadBy::kEveryRank, ReadBy::kOneReplica}) {
        ZeroPart zero(mesh, /*even_split=*/true);
        const StateDicts dicts{
            {"model", make_tensors(mesh, shift, false)},
            {"optimizer", zero.state(mesh)}};
        load(
            scratch_.path() / "step-1",
            dicts,
            {.all_or_nothing = read_by == ReadBy::kEveryRank,
             .read_by = read_by});
        EXPECT_EQ(hashes_of(dicts), expected);
      }
    });
    shift += 3;
  }
}

INSTANTIATE_TEST_SUITE_P(
    From,
    MeshMatrix,
    ::testing::ValuesIn(kMeshes),
    [](const auto& info) { return name_of(info.param); });

} // namespace
} // namespace weft::checkpoint
