#include "data_parallel/comm_hooks/bucket_views.h"

#include <utility>

#include <torch/torch.h>

namespace weft::data_parallel {

std::vector<at::Tensor> gradients_in(
    const at::Tensor& flat,
    const GradBucket& bucket) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(bucket.gradients.size());
  for (const at::Tensor& gradient : bucket.gradients) {
    gradients.push_back(flat.as_strided(
        gradient.sizes(),
        gradient.strides(),
        flat.storage_offset() + gradient.storage_offset() -
            bucket.buffer.storage_offset()));
  }
  return gradients;
}

mesh::ErrorContext describe(const GradBucket& bucket) {
  auto text = label_of(bucket);
  if (!bucket.names.empty()) {
    text += " (" + bucket.names.front();
    if (bucket.names.size() > 1) {
      text += " and " + std::to_string(bucket.names.size() - 1) + " more";
    }
    text += ")";
  }
  return {mesh::detail::concat(
      "rank ",
      bucket.group.rank(),
      "/",
      bucket.group.size(),
      ", group \"",
      bucket.group.name(),
      "\", ",
      text)};
}

void check_can_compress(const GradBucket& bucket, std::string_view hook) {
  WEFT_CHECK(
      bucket.buffer.is_floating_point(),
      hook,
      describe(bucket),
      "gradients of ",
      bucket.buffer.scalar_type(),
      " cannot be compressed, only those of a real floating-point dtype. Use "
      "allreduce_hook, or a separate DDP for these parameters.");
}

BucketFuture start_average(
    const at::Tensor& buffer,
    mesh::Communicator group,
    const std::string& name) {
  if (group.size() > 1) {
    at::Tensor(buffer).div_(group.size());
  }
  return {group.all_reduce(buffer, mesh::ReduceOp::kSum, name), buffer};
}

std::string label_of(const GradBucket& bucket) {
  return "ddp bucket " + std::to_string(bucket.index);
}

} // namespace weft::data_parallel
