#include "mesh/communicator/call.h"

#include <functional>
#include <utility>

#include <c10/util/accumulate.h>

#include "base/fnv.h"
#include "mesh/communicator/row_reduction.h"
#include "mesh/error/error.h"

namespace weft::mesh {

namespace {

uint64_t mix(uint64_t hash, std::string_view text) {
  return base::fnv1a(hash, std::hash<std::string_view>{}(text));
}

uint64_t mix(uint64_t hash, const std::vector<int64_t>& numbers) {
  for (const int64_t number : numbers) {
    hash = base::fnv1a(hash, static_cast<uint64_t>(number));
  }
  return base::fnv1a(hash, numbers.size());
}

} // namespace

uint64_t identity_of(const FlightRecorderEntry& call) {
  uint64_t hash = mix(mix(base::kFnvBasis, call.op), call.name);
  hash = base::fnv1a(hash, static_cast<uint64_t>(call.dtype));
  hash = base::fnv1a(hash, static_cast<uint64_t>(call.argument));
  hash = base::fnv1a(hash, static_cast<uint64_t>(call.caller));
  if (call.op == "all_to_all") {
    return hash;
  }
  if (!call.parts.empty()) {
    return mix(hash, call.parts);
  }
  if (call.op == "all_gather" || call.op == "reduce_scatter") {
    return base::fnv1a(
        hash, static_cast<uint64_t>(c10::multiply_integers(call.shape)));
  }
  return mix(hash, call.shape);
}

int64_t total_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

FlightRecorderEntry
make_call(std::string op, std::string_view name, const at::Tensor& tensor) {
  FlightRecorderEntry call;
  call.op = std::move(op);
  call.name = name;
  if (tensor.defined()) {
    call.shape = tensor.sizes().vec();
    call.dtype = tensor.scalar_type();
    call.bytes = static_cast<int64_t>(tensor.nbytes());
  }
  return call;
}

void check_tensor(
    const GroupState& group,
    const FlightRecorderEntry& call,
    const at::Tensor& tensor) {
  const auto where = [&] { return group.describe(call); };
  WEFT_CHECK(tensor.defined(), call.op, where(), "A tensor is undefined.");
  WEFT_CHECK(
      tensor.layout() == at::kStrided,
      call.op,
      where(),
      "A tensor is ",
      tensor.layout(),
      "; only strided tensors can be communicated. Call to_dense() first.");
  WEFT_CHECK(
      group.backend->supports(tensor.device().type()),
      call.op,
      where(),
      "A tensor is on ",
      tensor.device(),
      ", where the backend ",
      group.backend->kind(),
      " cannot move it.");
  WEFT_CHECK(
      tensor.scalar_type() == call.dtype,
      call.op,
      where(),
      "all tensors of one call must have one dtype: ",
      tensor.scalar_type(),
      " vs ",
      call.dtype,
      ". Convert the tensors to one dtype, or make one call per dtype.");
}

void check_op(
    const GroupState& group,
    const FlightRecorderEntry& call,
    ReduceOp op) {
  const auto where = [&] { return group.describe(call); };
  const bool is_complex = c10::isComplexType(call.dtype);
  WEFT_CHECK(
      can_reduce(call.dtype),
      call.op,
      where(),
      call.dtype,
      " cannot be reduced. Convert it to another dtype first.");
  WEFT_CHECK(
      op != ReduceOp::kAvg || is_complex || c10::isFloatingType(call.dtype),
      call.op,
      where(),
      "An average of ",
      call.dtype,
      " is not defined. Use a sum, or convert the tensor to a floating-point "
      "dtype.");
  WEFT_CHECK(
      (op != ReduceOp::kMin && op != ReduceOp::kMax) || !is_complex,
      call.op,
      where(),
      "Minimum and maximum are not defined for complex numbers.");
}

void check_parts(
    const GroupState& group,
    const FlightRecorderEntry& call,
    const std::vector<at::Tensor>& parts) {
  WEFT_CHECK(
      static_cast<int64_t>(parts.size()) == group.backend->size(),
      call.op,
      group.describe(call),
      "tensors: got ",
      parts.size(),
      ", expected ",
      group.backend->size(),
      ", one per rank of the group.");
  for (const at::Tensor& part : parts) {
    check_tensor(group, call, part);
  }
}

void check_root(
    const GroupState& group,
    const FlightRecorderEntry& call,
    int64_t root) {
  const auto where = [&] { return group.describe(call); };
  WEFT_CHECK(
      0 <= root && root < group.backend->size(),
      call.op,
      where(),
      "root must be at least 0 and less than the number of ranks in the "
      "group: ",
      root,
      " vs ",
      group.backend->size(),
      ". Pass the root's rank within the group, not its global rank.");
}

} // namespace weft::mesh
