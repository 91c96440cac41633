#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "mesh/error/error.h"

namespace weft::ddp {

/// The gradients of `bucket` in other memory of its layout: views of `flat`,
/// which has at least as many elements as the bucket's buffer.
std::vector<at::Tensor> gradients_in(
    const at::Tensor& flat,
    const GradBucket& bucket);

/// "rank 0/2, group "dp", ddp bucket 3 (wq.weight and 5 more)", for messages.
mesh::ErrorContext describe(const GradBucket& bucket);

/// Throws: c10::ValueError if the bucket is not of real floating point, which
/// is all that can be compressed.
void check_can_compress(const GradBucket& bucket, std::string_view hook);

/// Divides the buffer by the size of `group` and starts its sum: in this order,
/// so that low precision does not overflow.
BucketFuture start_average(
    const at::Tensor& buffer,
    mesh::Communicator group,
    const std::string& name);

/// What the ledger says of a bucket, e.g. "ddp bucket 3".
std::string label_of(const GradBucket& bucket);

} // namespace weft::ddp
