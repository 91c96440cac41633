#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "mesh/communicator/backend.h"

namespace c10d {
class Work;
} // namespace c10d

// What the backends over c10d share.
namespace weft::mesh {

// libtorch renamed some collectives between 2.11 and 2.15. Which name exists is
// asked of the class itself, so that no table of versions is needed.

template <class G>
c10::intrusive_ptr<c10d::Work> start_all_to_all(
    G& group,
    at::Tensor output,
    at::Tensor input,
    std::vector<int64_t> output_counts,
    std::vector<int64_t> input_counts) {
  if constexpr (requires {
                  group.all_to_all_single(
                      output, input, output_counts, input_counts);
                }) {
    return group.all_to_all_single(output, input, output_counts, input_counts);
  } else {
    return group.alltoall_base(output, input, output_counts, input_counts);
  }
}

template <class G>
c10::intrusive_ptr<c10d::Work>
start_all_gather(G& group, at::Tensor output, at::Tensor input) {
  if constexpr (requires { group.all_gather_single(output, input); }) {
    return group.all_gather_single(output, input);
  } else {
    return group._allgather_base(output, input);
  }
}

/// Views a tensor as bytes. Data that is only moved is sent as bytes, because
/// gloo and NCCL support few dtypes.
at::Tensor bytes_of(const at::Tensor& tensor);
Backend::Counts byte_counts(Backend::Counts counts, const at::Tensor& tensor);

/// Returns true if both gloo and NCCL can reduce this dtype.
bool is_reducible(c10::ScalarType dtype);

/// Converts a reduction. kAvg becomes a sum, because not every backend supports
/// averages.
c10d::ReduceOp to_c10d(ReduceOp op);

} // namespace weft::mesh
