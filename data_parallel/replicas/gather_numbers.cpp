#include "data_parallel/replicas/gather_numbers.h"

#include <torch/torch.h>

namespace weft::ddp {

at::Tensor gather_numbers(
    mesh::Communicator& group,
    const std::vector<int64_t>& own,
    c10::Device device,
    std::string_view name) {
  const auto row = at::tensor(own, at::kLong);
  if (group.size() == 1 || group.backend() == "fake") {
    return row.unsqueeze(0);
  }
  const auto input = row.to(device);
  const auto output = at::empty({group.size(), input.numel()}, input.options());
  group.all_gather(output, input, name).wait();
  return output.cpu();
}

} // namespace weft::ddp
