#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "mesh/error/error.h"

namespace weft::data_parallel {

/// Returns the gradients of `bucket` as views of `flat`, which has the bucket's
/// layout and at least as many elements.
std::vector<at::Tensor> gradients_in(
    const at::Tensor& flat,
    const GradBucket& bucket);

/// Returns "rank 0/2, group "dp", ddp bucket 3 (wq.weight and 5 more)", for
/// messages.
mesh::ErrorContext describe(const GradBucket& bucket);

/// Throws: c10::ValueError if the bucket's dtype is not real floating point,
/// which compression requires.
void check_can_compress(const GradBucket& bucket, std::string_view hook);

/// Divides the buffer by the size of `group` and then starts its sum, so that
/// low precision does not overflow.
BucketFuture start_average(
    const at::Tensor& buffer,
    mesh::Communicator group,
    const std::string& name);

/// Returns the name of a bucket in the flight recorder, "ddp bucket 3".
std::string label_of(const GradBucket& bucket);

} // namespace weft::data_parallel
