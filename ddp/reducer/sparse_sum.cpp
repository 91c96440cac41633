#include "ddp/reducer/sparse_sum.h"

#include <vector>

#include <torch/torch.h>

#include "mesh/communicator/exchange.h"

namespace weft::ddp {
namespace {

std::vector<int64_t> gather_counts(
    mesh::Communicator& group,
    int64_t count,
    c10::Device device,
    const std::string& name) {
  const auto counts = gather_numbers(group, {count}, device, name + " entries");
  // A fake process group returns only this rank's count, which stands for all.
  const auto all = counts.expand({group.size(), 1}).contiguous();
  const auto* data = all.const_data_ptr<int64_t>();
  return {data, data + group.size()};
}

at::Tensor sum_now(
    const at::Tensor& sparse,
    mesh::Communicator group,
    const std::string& name) {
  const at::NoGradGuard no_grad;
  auto own = sparse.coalesce();
  if (group.size() == 1) {
    return own;
  }
  const auto indices = own.indices().contiguous();
  const auto values = own.values().contiguous();
  const auto counts =
      gather_counts(group, values.size(0), values.device(), name);
  std::vector<at::Tensor> all_indices;
  std::vector<at::Tensor> all_values;
  for (const int64_t count : counts) {
    all_indices.push_back(
        at::empty({indices.size(0), count}, indices.options()));
    auto sizes = values.sizes().vec();
    sizes[0] = count;
    all_values.push_back(at::empty(sizes, values.options()));
  }
  auto work = group.all_gather_uneven(all_indices, indices, name + " indices");
  group.all_gather_uneven(all_values, values, name).wait();
  work.wait();
  return at::sparse_coo_tensor(
             at::cat(all_indices, 1), at::cat(all_values, 0), own.sizes())
      .coalesce();
}

} // namespace

data_parallel::BucketFuture sum_sparse(
    const at::Tensor& sparse,
    const mesh::Communicator& group,
    const std::string& name) {
  return data_parallel::BucketFuture(
      [sparse, group, name] { return sum_now(sparse, group, name); });
}

} // namespace weft::ddp
