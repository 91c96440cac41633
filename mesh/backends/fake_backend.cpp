#include "mesh/backends/fake_backend.h"

#include <numeric>
#include <utility>

namespace weft::mesh {

FakeBackend::FakeBackend(GroupMembers members, std::string kind)
    : Backend(std::move(members)), kind_(std::move(kind)) {}

at::Tensor FakeBackend::own_part(const at::Tensor& buffer, const Counts& counts)
    const {
  const auto own = counts.begin() + rank();
  return buffer.narrow(
      0, std::accumulate(counts.begin(), own, int64_t{0}), *own);
}

std::unique_ptr<BackendWork> FakeBackend::all_reduce(
    const at::Tensor&,
    ReduceOp) {
  return nullptr;
}

std::unique_ptr<BackendWork> FakeBackend::all_gather(
    const at::Tensor& output,
    const at::Tensor& input,
    const Counts& counts) {
  if (size() > 1) {
    output.zero_();
  }
  own_part(output, counts).copy_(input);
  return nullptr;
}

std::unique_ptr<BackendWork> FakeBackend::reduce_scatter(
    const at::Tensor& output,
    const at::Tensor& input,
    const Counts& counts,
    ReduceOp) {
  output.copy_(own_part(input, counts));
  return nullptr;
}

std::unique_ptr<BackendWork> FakeBackend::all_to_all(
    const at::Tensor& output,
    const at::Tensor& input,
    const Counts& output_counts,
    const Counts& input_counts) {
  if (size() > 1) {
    output.zero_();
  }
  own_part(output, output_counts).copy_(own_part(input, input_counts));
  return nullptr;
}

std::unique_ptr<BackendWork> FakeBackend::broadcast(
    const at::Tensor&,
    int64_t) {
  return nullptr;
}

std::unique_ptr<BackendWork> FakeBackend::barrier() {
  return nullptr;
}

} // namespace weft::mesh
