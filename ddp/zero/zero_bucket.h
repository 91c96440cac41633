#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "ddp/zero/partition.h"
#include "mesh/communicator/communicator.h"

namespace weft::ddp {

/// Creates an optimizer of groups of parameters, e.g. [](auto groups) { return
/// std::make_unique<torch::optim::SGD>(std::move(groups), 0.1); } It is called
/// several times, each for some of the parameters; the groups' options are set
/// afterwards.
using ZeroOptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(
        std::vector<torch::optim::OptimizerParamGroup>)>;

/// A parameter of a ZeroRedundancyOptimizer.
struct ZeroEntry {
  at::Tensor parameter;
  /// The index of its parameter group.
  size_t group = 0;
  ZeroPart part;
  /// The part that this rank updates, a leaf: the parameter, some or none of
  /// its rows, or undefined.
  at::Tensor own = {};
};

/// The groups of one optimizer, and their indices in the outer one.
struct LocalOptimizer {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::vector<size_t> groups;

  /// Creates an optimizer of tensors[i] for entries[i], without undefined
  /// tensors. Empty if all are undefined.
  static LocalOptimizer make(
      const std::vector<ZeroEntry>& entries,
      const std::vector<at::Tensor>& tensors,
      const ZeroOptimizerFactory& factory,
      const std::vector<torch::optim::OptimizerParamGroup>& outer);
  void copy_options(
      const std::vector<torch::optim::OptimizerParamGroup>& outer);
};

/// Parameters of one dtype and device that one optimizer per rank updates, and
/// that are gathered together.
class ZeroBucket {
 public:
  struct Options {
    /// Gathers into the parameters' own memory.
    bool in_place = false;
    /// The name in the flight recorder.
    std::string name;
  };

  ZeroBucket(
      std::vector<ZeroEntry> entries,
      mesh::Communicator group,
      Options options);

  const std::vector<ZeroEntry>& entries() const { return entries_; }
  LocalOptimizer& inner() { return inner_; }
  void make_inner(
      const ZeroOptimizerFactory& factory,
      const std::vector<torch::optim::OptimizerParamGroup>& outer);

  /// Updates this rank's parts.
  void update(const std::vector<torch::optim::OptimizerParamGroup>& outer);
  /// Starts to exchange the updated parts.
  /// Collective: all replicas.
  void start_gather();
  bool is_gathering() const { return gather_.has_value(); }
  /// Waits until the parameters have their new values.
  void finish_gather();

 private:
  struct Gather {
    std::vector<mesh::Work> works;
    /// The memory in which values arrive, in rank order, if not in the
    /// parameters.
    at::Tensor staging;
  };

  int64_t rank() const { return group_.rank(); }
  std::vector<at::Tensor> parts_of(const ZeroEntry& entry) const;
  std::vector<at::Tensor> parts_of_rank(int64_t rank) const;
  void lay_out();
  void refresh();
  void gather_one_by_one(Gather& gather);
  void gather_staged(Gather& gather);

  std::vector<ZeroEntry> entries_;
  mesh::Communicator group_;
  Options options_;
  bool is_sharded_;
  LocalOptimizer inner_;
  /// The parameters' memory in owner order. Undefined unless parameters are
  /// views of it.
  at::Tensor flat_;
  std::vector<int64_t> flat_counts_;
  std::optional<Gather> gather_;
};

} // namespace weft::ddp
