#include "data/batch_staging.h"

namespace weft::recipes {
namespace {

at::Tensor staged(const at::Tensor& tensor, c10::Device device) {
  return tensor.pin_memory().to(
      device, tensor.scalar_type(), /*non_blocking=*/true);
}

} // namespace

Batch to_device(const Batch& batch, c10::Device device) {
  if (device.is_cpu()) {
    return batch;
  }
  return {
      .input = staged(batch.input, device),
      .target = staged(batch.target, device),
      .first_sample = batch.first_sample};
}

} // namespace weft::recipes
