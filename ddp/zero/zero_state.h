#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "ddp/zero/zero_bucket.h"
#include "ddp/zero/zero_redundancy_optimizer.h"
#include "dtensor/nn/state_dict.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// Reads and writes the state of a ZeroRedundancyOptimizer by the names of a
/// module's parameters. See Note [State of a divided optimizer].
class ZeroStateAccess {
 public:
  /// `to_be_loaded` is as in dtensor::optimizer_state_dict(), and identical on
  /// all ranks or null.
  /// Throws: c10::ValueError if the module does not have a parameter.
  ZeroStateAccess(
      std::vector<ZeroBucket>& buckets,
      const ZeroOptimizerFactory& factory,
      std::vector<torch::optim::OptimizerParamGroup>& groups,
      const mesh::DeviceMesh& dp,
      const torch::nn::Module& module,
      const dtensor::StateDict* to_be_loaded);

  /// Collective: all replicas; blocks.
  dtensor::StateDict state_dict();
  /// Collective: all ranks of the joint mesh; blocks.
  void load(const dtensor::StateDict& state);
  /// Collective: all ranks of the joint mesh; blocks.
  dtensor::StateDict consolidated(int64_t to);

 private:
  /// An optimizer of some entries, which a module names "p0", "p1", ...
  struct Reader {
    /// An optimizer of what this rank does not hold. Otherwise the bucket's is
    /// used.
    LocalOptimizer rest = {};
    LocalOptimizer* inner = nullptr;
    std::vector<const ZeroEntry*> entries = {};
    torch::nn::Module stand_in = torch::nn::Module("stand_in");
    /// The keys of `inner`, with the keys by parameter names.
    std::vector<std::pair<std::string, std::string>> keys = {};
  };

  void add_held(ZeroBucket& bucket);
  void note_frozen_state(std::vector<ZeroBucket>& buckets);
  void add_rest(ZeroBucket& bucket, const ZeroOptimizerFactory& factory);
  const std::string& name_of(const ZeroEntry& entry) const;
  bool is_to_be_loaded(const ZeroEntry& entry) const;
  dtensor::StateDict held_by(const Reader& reader) const;
  dtensor::StateDict state_of(const Reader& reader, LocalOptimizer& inner)
      const;
  dtensor::StateDict read();
  void read(Reader& reader, dtensor::StateDict& result);
  at::Tensor place(const ZeroEntry& entry, const at::Tensor& moment) const;
  void agree(const std::exception_ptr& error);
  void broadcast_numbers_from_leads(dtensor::StateDict& result);

  std::vector<torch::optim::OptimizerParamGroup>& groups_;
  mesh::DeviceMesh dp_;
  mesh::DeviceMesh joint_;
  const dtensor::StateDict* to_be_loaded_;
  c10::Device device_;
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  std::vector<Reader> readers_;
  /// Frozen parameters for which a replica has, or will have, state.
  std::set<const ZeroEntry*> frozen_with_state_;
  /// Numbers that one rank knows; true if this is the rank.
  std::map<std::string, bool> numbers_;
};

/// The state of a ZeroRedundancyOptimizer.
struct ZeroRedundancyOptimizer::State {
  mesh::DeviceMesh dp;
  ZeroRedundancyOptimizerOptions options;
  int64_t cap_bytes;
  ZeroOptimizerFactory factory;
  PartPlanner planner;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  /// The number of parameters of each group that are in buckets.
  std::vector<size_t> planned = {};
  std::vector<ZeroBucket> buckets = {};
  std::function<void()> before_update = {};

  mesh::Communicator group() const { return dp.group(int64_t{0}); }
  /// Compares lines and defaults between ranks.
  /// Collective: all replicas.
  void check_agreement(
      std::vector<std::string> lines,
      const torch::optim::OptimizerOptions& defaults) const;
  void wait_for(const torch::nn::Module& module);
};

} // namespace weft::ddp
