#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"
#include "fsdp/memory_pool.h"

namespace weft::fsdp {

// Note [Two forms of a parameter]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A parameter is one handle, which modules, optimizers and checkpoints keep.
// Between its uses it is sharded: a DTensor on the data-parallel mesh dim and
// its own, of which this rank has some rows. For a use it is unsharded: it lies
// as it would without fully sharded data parallelism, all rows here.
// DTensorImpl::reset_local() changes the form, and with mixed precision the
// dtype; sizes are global in both, so that the node that accumulates its
// gradient stays.
//
// All rows always lie in one storage, whose memory is given away and taken
// again, so that what autograd saved of the unsharded form (the handle, views
// of it, local tensors in the same storage) is valid again once the rows are
// here. An access meanwhile is an error that names the parameter.

/// The specs of a parameter in both forms.
struct ShardedPlacement {
  /// The spec without fully sharded data parallelism.
  dtensor::DTensorSpec unsharded;
  /// The spec that is also sharded over the data-parallel mesh dim.
  dtensor::DTensorSpec sharded;
  /// The spec of a sharded gradient that is not summed over the replicas yet.
  /// If there are no other replicas, it is equal to `sharded`.
  dtensor::DTensorSpec unreduced;
};

/// A parameter of a unit. The shards of all ranks have the same number of
/// elements: rows are padded to ceil(rows / ranks). A parameter without dims is
/// not sharded, and each shard has its one element.
class ShardedParameter {
 public:
  /// `parameter` is a leaf with values in its sharded form. `dtype` is that of
  /// the unsharded form. `ranks` is the size of the data-parallel mesh dim,
  /// `rank` this rank's position.
  ShardedParameter(
      std::string name,
      const at::Tensor& parameter,
      ShardedPlacement placement,
      at::ScalarType dtype,
      int64_t ranks,
      int64_t rank);

  const std::string& name() const { return name_; }
  const at::Tensor& tensor() const { return parameter_; }
  const ShardedPlacement& placement() const { return placement_; }
  /// This rank's rows, detached.
  const at::Tensor& shard() const { return shard_; }
  /// The number of elements of one rank's shard, with padding.
  int64_t part_numel() const { return part_numel_; }
  /// The sizes of the unsharded form's local tensor.
  at::IntArrayRef unsharded_sizes() const { return whole_.sizes(); }
  /// The dtypes of the two forms.
  at::ScalarType dtype() const { return shard_.scalar_type(); }
  at::ScalarType unsharded_dtype() const { return whole_.scalar_type(); }
  /// The size of the unsharded form in bytes.
  int64_t unsharded_bytes() const;
  bool is_unsharded() const { return is_unsharded_; }

  /// Moves this rank's rows, with their values, to the start of `part`
  /// [part_numel()].
  void move_shard_to(const at::Tensor& part);

  /// Takes over the tensor that set_data() or Module::to() gave the parameter
  /// in place of its shard.
  /// Throws: c10::ValueError if its placement, dtype or device differs.
  void adopt_new_shard();

  /// Switches to the unsharded form.
  /// Shapes: parts [ranks, part_numel()] of unsharded_dtype(), any strides
  /// between the parts. `memory` provides the storage.
  void unshard(const at::Tensor& parts, MemoryPool& memory);
  /// Switches to the unsharded form in dtype(), with memory of its own. What
  /// autograd saved of the parameter does not become valid.
  /// Shapes: as in unshard(), but parts are of dtype().
  void unshard_in_full_precision(const at::Tensor& parts);
  /// Copies writes to this rank's rows of the unsharded form to the shard.
  void write_back();
  /// Switches to the sharded form.
  /// Throws: c10::Error if the parameter was written to.
  void reshard(MemoryPool& memory);

  /// Writes this rank's gradient, divided by `divisor`, to the parts of all
  /// ranks.
  /// Shapes: `local` like the unsharded form's local tensor; `parts` as in
  /// unshard().
  void write_gradient(
      const at::Tensor& local,
      double divisor,
      const at::Tensor& parts) const;
  /// Adds a sharded gradient's local tensor, times `factor`, to this rank's
  /// rows of an unsharded one.
  void add_to_own_rows(
      const at::Tensor& unsharded,
      const at::Tensor& sharded,
      double factor) const;
  /// Returns the gradient of this rank's rows, in the memory of `part`.
  at::Tensor sharded_gradient(
      const at::Tensor& part,
      const dtensor::DTensorSpec& spec) const;

 private:
  /// Returns the rows of one rank in a part, and the same rows in the full
  /// tensor.
  at::Tensor rows_of_part(const at::Tensor& part, int64_t rank) const;
  at::Tensor rows_of_whole(const at::Tensor& whole, int64_t rank) const;
  /// Calls visit(rows of `whole`, the same rows in `parts`) for all rows.
  template <class Visit>
  void visit_rows(
      const at::Tensor& whole,
      const at::Tensor& parts,
      const Visit& visit) const;
  void switch_to(const at::Tensor& unsharded);
  int64_t first_row(int64_t rank) const;
  int64_t row_count(int64_t rank) const;
  at::DataPtr release_memory();

  std::string name_;
  at::Tensor parameter_;
  ShardedPlacement placement_;
  int64_t ranks_;
  int64_t rank_;
  int64_t rows_ = 1;
  int64_t row_numel_ = 1;
  /// The rows of each part. The last ones may be padding.
  int64_t part_rows_ = 1;
  int64_t part_numel_ = 1;
  at::Tensor shard_;
  at::Tensor whole_;
  /// The unsharded form in full precision while it is used.
  at::Tensor full_precision_;
  /// A view of that memory with its own version counter, so that gathering rows
  /// is not a write to saved tensors.
  at::Tensor whole_to_fill_;
  int64_t version_ = 0;
  bool is_unsharded_ = false;
  bool is_written_back_ = false;
};

} // namespace weft::fsdp
