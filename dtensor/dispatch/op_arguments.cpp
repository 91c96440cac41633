#include "dtensor/dispatch/op_arguments.h"

#include <optional>

#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {

OpCall read_call(const c10::OperatorHandle& op, Arguments arguments) {
  OpCall call{op, arguments, {}, {}, {}};
  const auto& schema = op.schema().arguments();
  for_each_tensor(
      arguments,
      [&](const at::Tensor& tensor, size_t argument, int64_t list_index) {
        const auto* impl = dtensor_impl(tensor);
        auto& list = schema[argument].is_out() ? call.outs : call.tensors;
        list.push_back(
            {argument,
             list_index,
             tensor,
             impl ? std::optional(impl->spec()) : std::nullopt});
        if (impl && call.common.mesh_ndim() == 0) {
          call.common = impl->spec();
        }
      });
  return call;
}

} // namespace weft::dtensor
