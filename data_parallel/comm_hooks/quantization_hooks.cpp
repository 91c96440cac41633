#include "data_parallel/comm_hooks/quantization_hooks.h"

#include <limits>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "data_parallel/comm_hooks/bucket_views.h"

namespace weft::data_parallel {
namespace {

constexpr double kGreatest = 255;

/// Returns the scale and the zero point of each row.
/// Shapes: channels [rows, n], result [2, rows], float32.
/// Source: torch/ao/quantization/observer.py, _calculate_qparams.
at::Tensor choose_ranges(const at::Tensor& channels) {
  const auto [least, greatest] = at::aminmax(channels, /*dim=*/1);
  const auto low = least.to(at::kFloat).clamp_max(0);
  const auto high = greatest.to(at::kFloat).clamp_min(0);
  const auto scale = (high - low)
                         .div(kGreatest)
                         .clamp_min(std::numeric_limits<float>::epsilon());
  const auto zero_point = (low / scale).round().neg().clamp(0, kGreatest);
  return at::stack({scale, zero_point});
}

/// Shapes: channels [rows, n], ranges [2, rows].
at::Tensor quantize(const at::Tensor& channels, const at::Tensor& ranges) {
  auto y = channels / ranges[0].unsqueeze(1);
  y.round_().add_(ranges[1].unsqueeze(1)).clamp_(0, kGreatest);
  // A NaN may become 0 here. The range of its row is not finite then, and
  // dequantize() returns NaN for the whole row.
  return y.nan_to_num_(0).to(at::kByte);
}

at::Tensor dequantize(const at::Tensor& y, const at::Tensor& ranges) {
  return y.to(at::kFloat)
      .sub_(ranges[1].unsqueeze(1))
      .mul_(ranges[0].unsqueeze(1));
}

/// Starts an all_gather of `own`. Shape of the result: [size, ...], in the
/// order of ranks.
std::pair<mesh::Work, at::Tensor> start_gather(
    const at::Tensor& own,
    mesh::Communicator& group,
    const std::string& name) {
  auto sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  const auto gathered = at::empty(sizes, own.options());
  return {group.all_gather(gathered, own, name), gathered};
}

at::Tensor mean_of(const at::Tensor& integers, const at::Tensor& ranges) {
  auto sum = dequantize(integers[0], ranges[0]);
  for (int64_t rank = 1; rank < integers.size(0); ++rank) {
    sum += dequantize(integers[rank], ranges[rank]);
  }
  return sum.div_(integers.size(0));
}

/// Returns the buffer in rows of `channel` elements, the last one padded with
/// zeros. The dtype represents integers up to 255 exactly.
at::Tensor in_channels(const at::Tensor& buffer, int64_t channel) {
  const auto dtype =
      buffer.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t missing = (channel - buffer.numel() % channel) % channel;
  return at::constant_pad_nd(buffer.to(dtype), {0, missing})
      .view({-1, channel});
}

BucketFuture start_quantized(const GradBucket& bucket, int64_t channel) {
  const auto channels = in_channels(bucket.buffer, channel);
  auto group = bucket.group;
  auto [work, ranges] =
      start_gather(choose_ranges(channels), group, label_of(bucket));
  return BucketFuture(std::move(work), ranges)
      .then([=, buffer = bucket.buffer, name = label_of(bucket)](
                const at::Tensor& all_ranges) mutable {
        auto [gathering, integers] = start_gather(
            quantize(channels, all_ranges[group.rank()]), group, name);
        gathering.wait();
        const auto mean = mean_of(integers, all_ranges);
        return buffer.copy_(mean.view({-1}).narrow(0, 0, buffer.numel()));
      });
}

} // namespace

std::shared_ptr<CommHook> quantization_pertensor_hook() {
  constexpr const char* kName = "quantization_pertensor_hook";
  return make_comm_hook(kName, /*divides=*/true, [](const GradBucket& bucket) {
    check_can_compress(bucket, kName);
    if (bucket.buffer.numel() == 0) {
      return BucketFuture(bucket.buffer);
    }
    return start_quantized(bucket, bucket.buffer.numel());
  });
}

std::shared_ptr<CommHook> quantization_perchannel_hook(int64_t bucket_size) {
  constexpr const char* kName = "quantization_perchannel_hook";
  WEFT_CHECK(
      bucket_size >= 1,
      kName,
      mesh::ErrorContext{"comm hook"},
      "bucket_size: got ",
      bucket_size,
      ", expected at least 1. It is the number of elements that share a "
      "scale.");
  return make_comm_hook(
      kName, /*divides=*/true, [bucket_size](const GradBucket& bucket) {
        check_can_compress(bucket, kName);
        if (bucket.buffer.numel() == 0) {
          return BucketFuture(bucket.buffer);
        }
        return start_quantized(bucket, bucket_size);
      });
}

} // namespace weft::data_parallel
