#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "fsdp/options.h"
#include "fsdp/sharded_parameter.h"
#include "mesh/communicator/communicator.h"

namespace weft::fsdp {

/// Parameters that are gathered together and whose gradients are reduced
/// together: one message each. Who calls when is Schedule's matter.
/// Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
class Unit {
 public:
  /// `parameters` are sharded and have values. `group`: of the data-parallel
  /// mesh dim.
  Unit(
      std::string name,
      std::vector<ShardedParameter> parameters,
      const FullyShardOptions& options,
      bool reshards_after_forward,
      mesh::Communicator group);

  /// The module's fully qualified name; "the model" for the outermost one.
  const std::string& name() const { return name_; }
  const std::vector<ShardedParameter>& parameters() const {
    return parameters_;
  }
  int64_t unsharded_bytes() const;
  bool is_unsharded() const { return is_unsharded_; }
  bool reshards_after_forward() const { return reshards_after_forward_; }

  /// Starts to gather the parameters, unless they are here or on their way.
  /// Collective: all ranks of the group.
  void start_unshard(UnitMemory& memory);
  /// Waits for them. Collective: as start_unshard(), if that was not called.
  void unshard(UnitMemory& memory);
  /// Takes over what was written to unsharded parameters.
  void write_back();
  /// Gives the other ranks' rows away, and drops those that are on their way.
  void reshard(UnitMemory& memory);

  /// Whether somebody waits for the gradient of a parameter.
  bool listens_to(size_t index) const { return states_[index].is_listened_to; }
  void set_listens_to(size_t index) { states_[index].is_listened_to = true; }

  /// A backward pass begins: no gradient has come.
  void begin_backward();
  /// Whether some parameter is trained now.
  bool is_trained() const;
  /// Whether some parameter is not.
  bool has_frozen() const;
  /// Whether the gradients of all that is trained have come.
  bool awaits_nothing() const { return awaited_ == 0; }
  /// A gradient of parameter `index` has come. Returns whether it was the last
  /// that is awaited.
  bool count_gradient(size_t index);
  /// The gradient in the .grad() of parameter `index` moves into the message.
  /// Throws: c10::ValueError for a sparse one, and one with a graph.
  void take_gradient(size_t index, UnitMemory& memory);
  /// A sharded gradient of earlier passes makes room for one of this pass.
  void set_gradient_aside(size_t index);
  /// Whether start_reduce() was called in this pass.
  bool is_reduced() const { return is_reduced_; }
  /// Whether all gradients of this pass have come.
  bool is_done() const {
    return is_reduced_ || (awaited_ == 0 && is_trained());
  }
  bool has_gradients() const;
  /// Starts to reduce the gradients; those that did not come count as zeros.
  /// Collective: all ranks of the group.
  void start_reduce(UnitMemory& memory);
  /// Waits for the sums. Those of earlier passes are added.
  void finish_reduce(UnitMemory& memory);
  /// Gives the parameters their sharded gradients. One that no rank had a
  /// gradient of in this pass keeps what it had.
  void set_gradients();
  /// After a pass that failed, or that adds to this rank's own gradients.
  void keep_own_gradients(UnitMemory& memory);

 private:
  /// The parameters of one dtype.
  struct Part {
    at::ScalarType dtype = at::kFloat;
    std::vector<size_t> parameters;
    /// Where each begins in a rank's part.
    std::vector<int64_t> offsets;
    int64_t numel = 0;
    /// Of this rank: the parameters' shards are views of it.
    at::Tensor shards;
    /// [ranks, numel], while rows of the others arrive.
    at::Tensor gathered;
    /// The parameters whose gradients are sent, and elements of a rank's part
    /// of them.
    std::vector<size_t> gradient_slots;
    int64_t gradient_numel = 0;
    /// [ranks, gradient_numel + gradient_slots]: gradients and, for each of
    /// those parameters, whether this rank has one.
    at::Tensor gradients;
    /// [gradient_numel + gradient_slots], this rank's sums while they are under
    /// way, and where they stay.
    at::Tensor reduced;
    at::Tensor sums;
    /// Sums of earlier passes lie in `sums`.
    bool adds_to_earlier = false;
    mesh::Work gather;
    mesh::Work reduction;
  };
  struct State {
    size_t part = 0;
    /// Its place in the part, and among those whose gradients are sent.
    size_t slot = 0;
    int64_t gradient_slot = -1;
    int64_t gradient_offset = 0;
    bool is_listened_to = false;
    /// One has come, and one is in the message.
    bool is_counted = false;
    bool has_gradient = false;
    /// The sharded gradient of earlier passes, and of this one once it is
    /// there, while .grad() is autograd's.
    at::Tensor aside;
  };

  at::Tensor parts_of(const at::Tensor& message, size_t index) const;
  at::Tensor gradient_parts_of(const at::Tensor& message, size_t index) const;
  void lay_out_gradients(Part& part);
  void allocate_gradients(Part& part, UnitMemory& memory);
  at::Tensor place_for_sums(Part& part, UnitMemory& memory);
  std::vector<bool> reduced_flags(const Part& part) const;
  void add_sum(const Part& part, size_t index);
  void finish_gather(UnitMemory& memory);
  void check_gradient(size_t index, const at::Tensor& gradient) const;
  double divisor() const;

  std::string name_;
  std::vector<ShardedParameter> parameters_;
  std::vector<State> states_;
  std::vector<Part> parts_;
  FullyShardOptions options_;
  bool reshards_after_forward_;
  mesh::Communicator group_;
  bool is_unsharded_ = false;
  bool is_gathering_ = false;
  bool is_reduced_ = false;
  size_t awaited_ = 0;
};

} // namespace weft::fsdp
