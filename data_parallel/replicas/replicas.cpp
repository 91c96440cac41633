#include "data_parallel/replicas/replicas.h"

#include <algorithm>
#include <string>

#include <torch/torch.h>

#include "base/string_streams.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

namespace weft::data_parallel {
namespace {

constexpr int64_t kBroadcastBytes = int64_t{250} << 20;

std::string describe(const char* kind, const NamedTensor& item) {
  base::StringWriter out;
  out << kind << ' ' << item.name << ' ' << item.tensor.sizes() << ' '
      << c10::toString(item.tensor.scalar_type());
  const auto local = local_part(item.tensor);
  if (!local.is_contiguous()) {
    out << " strides " << local.strides();
  }
  if (const auto* impl = dtensor::dtensor_impl(item.tensor)) {
    if (impl->spec().mesh_ndim() > 0) {
      out << ' ' << impl->spec().to_string() << " local " << local.sizes();
    }
  }
  out << " on " << c10::DeviceTypeName(local.device().type(), true)
      << (item.tensor.requires_grad() ? "" : " frozen");
  return out.str();
}

std::vector<std::string> describe_all(
    const std::vector<NamedTensor>& parameters,
    const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> lines;
  for (const auto& item : parameters) {
    lines.push_back(describe("parameter", item));
  }
  for (const auto& item : buffers) {
    lines.push_back(describe("buffer", item));
  }
  return lines;
}

} // namespace

void check_replicas_agree(
    const std::vector<NamedTensor>& parameters,
    const std::vector<NamedTensor>& buffers,
    const std::vector<std::string>& options,
    const mesh::DeviceMesh& dp) {
  // A fake process group has no other ranks to compare with.
  if (dp.size() == 1 || dp.group(int64_t{0}).backend() == "fake") {
    return;
  }
  const auto device = local_part(parameters.at(0).tensor).device();
  auto lines = describe_all(parameters, buffers);
  lines.insert(lines.end(), options.begin(), options.end());
  mesh::check_lines_match(
      dp.group(int64_t{0}),
      lines,
      {.op = "ddp",
       .what = "the model",
       .hint = "Build the same model on every rank.",
       .where = dp.describe_rank()},
      device);
}

void broadcast_from(
    int64_t root,
    const std::vector<NamedTensor>& tensors,
    mesh::Communicator& group,
    std::string_view name) {
  if (group.size() == 1) {
    return;
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> message;
  int64_t bytes = 0;
  const auto send = [&] {
    if (!message.empty()) {
      group.broadcast_coalesced(message, root, name).wait();
    }
    message.clear();
    bytes = 0;
  };
  for (const auto& item : tensors) {
    auto local = local_part(item.tensor);
    if (bytes > 0 &&
        bytes + static_cast<int64_t>(local.nbytes()) > kBroadcastBytes) {
      send();
    }
    bytes += static_cast<int64_t>(local.nbytes());
    message.push_back(std::move(local));
    // Values cached from the DTensor's old data must not be used again.
    if (auto* impl = dtensor::dtensor_impl(item.tensor)) {
      impl->bump_version();
    }
  }
  send();
}

} // namespace weft::data_parallel
