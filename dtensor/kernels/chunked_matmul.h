#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/region.h"
#include "dtensor/spec/spec.h"
#include "mesh/communicator/communicator.h"

namespace weft::dtensor::kernels {

// Note [Chunked matmul]
// ~~~~~~~~~~~~~~~~~~~~~
// A product x M of rows that one mesh dim cuts, where each rank gathers all
// rows of x before, or all ranks' products are summed and cut after. Part j of
// a gather brings the j-th piece of every rank's rows, and of a reduce_scatter
// takes it there, so that each rank sends and receives equal shares at any
// time. All parts of a gather start at once; the rank multiplies its own rows,
// then the parts as they arrive. A reduce_scatter's part starts as soon as its
// rows are multiplied.
//
// A row of a product does not depend on the rows beside it, sums over ranks are
// added in rank order: results are those of one product and one message. (The
// kernels of a BLAS may take the last few rows of a block in another order; in
// float32 the same bits were seen where a part has a multiple of 16 rows.)

/// The messages in which the rows of a matmul move.
struct RowChunks {
  mesh::Communicator group;
  /// The sharded tensor dim.
  int64_t dim = 0;
  /// The sizes of this rank's local tensor with all rows.
  std::vector<int64_t> whole;
  /// The rows of each rank of the group.
  RowRanges rows;
  /// The number of messages.
  int64_t parts = 1;

  /// Returns the rows of `rank` in message `part`.
  RowRange piece(int64_t rank, int64_t part) const;
  bool is_even() const;
};

/// Decides in what messages the rows of a matmul move between `cut` and
/// `together`, two specs of one mesh that differ in one mesh dim. `together`
/// has all rows (all_gather) or a Partial (reduce_scatter) there. No value
/// means one message. The result is identical on all ranks.
/// Shapes: `sizes` are those of the tensor that moves; `other` is the length of
/// the last dim on the other side of the matmul, over all ranks.
struct RowComm {
  const DTensorSpec& cut;
  const DTensorSpec& together;
  c10::IntArrayRef sizes;
  c10::ScalarType dtype;
  int64_t other = 1;
};
std::optional<RowChunks> plan_row_chunks(const RowComm& move);

/// Gathers the rows of x and multiplies them. Below autograd.
/// Shapes: `local` has this rank's rows of x [.., rows, .., K]; `matrix` [K,
/// N]; `bias` [N] or undefined.
/// Returns: x with all rows, and x M + b.
/// Collective: the ranks of the group; blocks.
struct AllGatherMatmulResult {
  at::Tensor whole;
  at::Tensor product;
};
AllGatherMatmulResult all_gather_matmul(
    const RowChunks& rows,
    const at::Tensor& local,
    const at::Tensor& matrix,
    const at::Tensor& bias,
    std::string_view name);

/// Multiplies the rows of x and reduce-scatters the product: each rank keeps
/// its rows of the sum. Below autograd.
/// Shapes: `x` [.., all rows, .., K]; `matrix` [K, N]; `result` [.., this
/// rank's rows, .., N], which is written.
/// Collective: the ranks of the group; blocks.
void matmul_reduce_scatter(
    const RowChunks& rows,
    const at::Tensor& x,
    const at::Tensor& matrix,
    const at::Tensor& result,
    std::string_view name);

} // namespace weft::dtensor::kernels
