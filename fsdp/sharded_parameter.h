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
// DTensorImpl::reset_local() changes the form; sizes and dtype are the whole
// tensor's in both, so that the node that accumulates its gradient stays.
//
// All rows always lie in one storage, whose memory is given away and taken
// again, so that what autograd saved of the unsharded form (the handle, views
// of it, local tensors in the same storage) is valid again once the rows are
// here. An access meanwhile is an error that names the parameter.

/// Where a parameter lies in either form.
struct ShardedPlacement {
  /// As without fully sharded data parallelism.
  dtensor::DTensorSpec unsharded;
  /// On the data-parallel mesh dim, too.
  dtensor::DTensorSpec sharded;
};

/// A parameter of a unit. The parts of all ranks have the same number of
/// elements: rows are padded to ceil(rows / ranks). A parameter of no dims is
/// not cut, and each part has its one element.
class ShardedParameter {
 public:
  /// `parameter`: a leaf with values, in its sharded form. `ranks`: of the
  /// data-parallel mesh dim, `rank` this one.
  ShardedParameter(
      std::string name,
      const at::Tensor& parameter,
      ShardedPlacement placement,
      int64_t ranks,
      int64_t rank);

  const std::string& name() const { return name_; }
  const at::Tensor& tensor() const { return parameter_; }
  const ShardedPlacement& placement() const { return placement_; }
  /// Elements of one rank's part, with its padding.
  int64_t part_numel() const { return part_numel_; }
  /// Of the unsharded form's local tensor.
  at::IntArrayRef unsharded_sizes() const { return whole_.sizes(); }
  /// Bytes of the unsharded form.
  int64_t unsharded_bytes() const;
  bool is_unsharded() const { return is_unsharded_; }

  /// Has this rank's rows lie at the beginning of `part` [part_numel()] from
  /// now on, with the values that they have.
  void move_shard_to(const at::Tensor& part);

  /// Takes over what set_data() or Module::to() gave the parameter in place of
  /// its shard.
  /// Throws: c10::ValueError if that has another placement, dtype or device.
  void adopt_new_shard();

  /// The unsharded form. Shapes: parts [ranks, part_numel()], any strides
  /// between the parts. `memory` has what the storage takes.
  void unshard(const at::Tensor& parts, MemoryPool& memory);
  /// Takes over what was written to this rank's rows of the unsharded form.
  void write_back();
  /// The sharded form again.
  /// Throws: c10::Error if the parameter was written to meanwhile.
  void reshard(MemoryPool& memory);

  /// Writes this rank's gradient, divided by `divisor`, into the parts of all
  /// ranks. Shapes: local: as the unsharded form's local tensor; parts: as
  /// unshard().
  void write_gradient(
      const at::Tensor& local,
      double divisor,
      const at::Tensor& parts) const;
  /// Adds a sharded gradient's local tensor, times `factor`, to this rank's
  /// rows of an unsharded one's.
  void add_to_own_rows(
      const at::Tensor& unsharded,
      const at::Tensor& sharded,
      double factor) const;
  /// The gradient of this rank's rows, in the memory of `part`.
  at::Tensor sharded_gradient(const at::Tensor& part) const;

 private:
  /// The rows of one rank in a part, and those rows of the whole.
  at::Tensor rows_of_part(const at::Tensor& part, int64_t rank) const;
  at::Tensor rows_of_whole(const at::Tensor& whole, int64_t rank) const;
  /// Calls visit(rows of `whole`, the same rows in `parts`) for all rows.
  template <class Visit>
  void visit_rows(
      const at::Tensor& whole,
      const at::Tensor& parts,
      const Visit& visit) const;
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
  /// Of each part, the last of which may be padding.
  int64_t part_rows_ = 1;
  int64_t part_numel_ = 1;
  at::Tensor shard_;
  at::Tensor whole_;
  /// The same memory, with a version of its own: bringing rows back is no write
  /// to what was saved.
  at::Tensor whole_to_fill_;
  int64_t version_ = 0;
  bool is_unsharded_ = false;
  bool is_written_back_ = false;
};

} // namespace weft::fsdp
