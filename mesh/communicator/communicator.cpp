#include "mesh/communicator/communicator.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "mesh/communicator/backend.h"
#include "mesh/communicator/call.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/communicator/group_watch.h"
#include "mesh/communicator/packing.h"
#include "mesh/communicator/work.h"
#include "mesh/error/error.h"

namespace weft::mesh {

Communicator::Communicator(
    std::shared_ptr<Backend> backend,
    const std::shared_ptr<GroupWatch>& watch,
    const std::string& key)
    : state_(std::make_shared<State>()) {
  state_->backend = std::move(backend);
  if (watch && size() > 1) {
    state_->watch = watch;
    watch->add(key, state_);
  }
}

Communicator::~Communicator() = default;

int64_t Communicator::rank() const {
  return state_->backend->rank();
}

int64_t Communicator::size() const {
  return state_->backend->size();
}

const std::string& Communicator::name() const {
  return state_->backend->members().name;
}

std::string_view Communicator::backend() const {
  return state_->backend->kind();
}

const std::vector<int64_t>& Communicator::ranks() const {
  return state_->backend->members().ranks;
}

FlightRecorder& Communicator::flight_recorder() const {
  return *state_->flight_recorder;
}

void Communicator::abort() {
  state_->fail({"The group was aborted on this rank"});
}

void Communicator::check() const {
  check_usable(*state_, make_call("check", {}, {}));
}

Work Communicator::all_reduce(
    const at::Tensor& tensor,
    ReduceOp op,
    std::string_view name) {
  FlightRecorderEntry call = make_call("all_reduce", name, tensor);
  call.argument = static_cast<int64_t>(op);
  check_tensor(*state_, call, tensor);
  check_op(*state_, call, op);
  if (tensor.numel() == 0) {
    return Work();
  }
  const at::NoGradGuard no_grad;
  const Packed packed = Packed::input({tensor});
  return launch(
      state_,
      std::move(call),
      [&](Backend& backend) { return backend.all_reduce(packed.buffer(), op); },
      packed.unpack());
}

Work Communicator::all_gather(
    const at::Tensor& output,
    const at::Tensor& input,
    std::string_view name) {
  FlightRecorderEntry call = make_call("all_gather", name, input);
  check_tensor(*state_, call, input);
  check_tensor(*state_, call, output);
  const auto where = [&] { return state_->describe(call); };
  WEFT_CHECK(
      output.numel() == size() * input.numel(),
      call.op,
      where(),
      "the output must have ranks * (elements of the input) elements: ",
      output.numel(),
      " vs ",
      size() * input.numel(),
      ". The output holds one input of every rank.");
  WEFT_CHECK(
      output.is_contiguous(),
      call.op,
      where(),
      "The output is not contiguous.");
  if (input.numel() == 0) {
    return Work();
  }
  call.bytes = static_cast<int64_t>(output.nbytes());
  const at::NoGradGuard no_grad;
  const Packed from = Packed::input({input});
  const at::Tensor to = output.view({-1});
  const std::vector<int64_t> counts(size(), input.numel());
  return launch(state_, std::move(call), [&](Backend& backend) {
    return backend.all_gather(to, from.buffer(), counts);
  });
}

Work Communicator::all_gather_uneven(
    const std::vector<at::Tensor>& outputs,
    const at::Tensor& input,
    std::string_view name) {
  FlightRecorderEntry call = make_call("all_gather_uneven", name, input);
  check_tensor(*state_, call, input);
  check_parts(*state_, call, outputs);
  WEFT_CHECK(
      outputs[rank()].numel() == input.numel(),
      call.op,
      state_->describe(call),
      "output ",
      rank(),
      ": got ",
      outputs[rank()].numel(),
      " elements, expected the ",
      input.numel(),
      " of this rank's input.");
  const at::NoGradGuard no_grad;
  const Packed to = Packed::output(outputs);
  if (to.buffer().numel() == 0) {
    return Work();
  }
  call.bytes = total_bytes(outputs);
  call.parts = to.counts();
  const Packed from = Packed::input({input});
  return launch(
      state_,
      std::move(call),
      [&](Backend& backend) {
        return backend.all_gather(to.buffer(), from.buffer(), to.counts());
      },
      to.unpack());
}

Work Communicator::reduce_scatter(
    const at::Tensor& output,
    const at::Tensor& input,
    ReduceOp op,
    std::string_view name) {
  FlightRecorderEntry call = make_call("reduce_scatter", name, input);
  call.argument = static_cast<int64_t>(op);
  check_tensor(*state_, call, input);
  check_tensor(*state_, call, output);
  check_op(*state_, call, op);
  const auto where = [&] { return state_->describe(call); };
  WEFT_CHECK(
      input.numel() == size() * output.numel(),
      call.op,
      where(),
      "the input must have ranks * (elements of the output) elements: ",
      input.numel(),
      " vs ",
      size() * output.numel(),
      ". The input holds one part for every rank.");
  WEFT_CHECK(
      output.is_contiguous(),
      call.op,
      where(),
      "The output is not contiguous.");
  if (input.numel() == 0) {
    return Work();
  }
  const at::NoGradGuard no_grad;
  const Packed from = Packed::input({input});
  const at::Tensor to = output.view({-1});
  const std::vector<int64_t> counts(size(), output.numel());
  return launch(state_, std::move(call), [&](Backend& backend) {
    return backend.reduce_scatter(to, from.buffer(), counts, op);
  });
}

Work Communicator::reduce_scatter_uneven(
    const at::Tensor& output,
    const std::vector<at::Tensor>& inputs,
    ReduceOp op,
    std::string_view name) {
  FlightRecorderEntry call = make_call("reduce_scatter_uneven", name, output);
  call.argument = static_cast<int64_t>(op);
  check_tensor(*state_, call, output);
  check_parts(*state_, call, inputs);
  check_op(*state_, call, op);
  WEFT_CHECK(
      output.numel() == inputs[rank()].numel(),
      call.op,
      state_->describe(call),
      "the output must have as many elements as input ",
      rank(),
      ": ",
      output.numel(),
      " vs ",
      inputs[rank()].numel(),
      ". The output receives this rank's part of the sum.");
  call.bytes = total_bytes(inputs);
  if (call.bytes == 0) {
    return Work();
  }
  const at::NoGradGuard no_grad;
  const Packed from = Packed::input(inputs);
  const Packed to = Packed::output({output});
  call.parts = from.counts();
  return launch(
      state_,
      std::move(call),
      [&](Backend& backend) {
        return backend.reduce_scatter(
            to.buffer(), from.buffer(), from.counts(), op);
      },
      to.unpack());
}

Work Communicator::all_to_all(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& inputs,
    std::string_view name) {
  FlightRecorderEntry call = make_call(
      "all_to_all", name, inputs.empty() ? at::Tensor() : inputs.front());
  check_parts(*state_, call, inputs);
  check_parts(*state_, call, outputs);
  WEFT_CHECK(
      outputs[rank()].numel() == inputs[rank()].numel(),
      call.op,
      state_->describe(call),
      "output ",
      rank(),
      ": got ",
      outputs[rank()].numel(),
      " elements, expected the ",
      inputs[rank()].numel(),
      " of input ",
      rank(),
      ", which this rank sends to itself.");
  const at::NoGradGuard no_grad;
  const Packed from = Packed::input(inputs);
  const Packed to = Packed::output(outputs);
  call.shape = {from.buffer().numel()};
  call.parts = from.counts();
  call.parts.insert(call.parts.end(), to.counts().begin(), to.counts().end());
  call.bytes = std::max(total_bytes(outputs), total_bytes(inputs));
  return launch(
      state_,
      std::move(call),
      [&](Backend& backend) {
        return backend.all_to_all(
            to.buffer(), from.buffer(), to.counts(), from.counts());
      },
      to.unpack());
}

Work Communicator::broadcast(
    const at::Tensor& tensor,
    int64_t root,
    std::string_view name) {
  FlightRecorderEntry call = make_call("broadcast", name, tensor);
  call.argument = root;
  check_tensor(*state_, call, tensor);
  check_root(*state_, call, root);
  if (tensor.numel() == 0) {
    return Work();
  }
  const at::NoGradGuard no_grad;
  const Packed packed = Packed::input({tensor});
  return launch(
      state_,
      std::move(call),
      [&](Backend& backend) {
        return backend.broadcast(packed.buffer(), root);
      },
      packed.unpack());
}

void Communicator::barrier(std::string_view name) {
  launch(state_, make_call("barrier", name, {}), [](Backend& backend) {
    return backend.barrier();
  }).wait();
}

} // namespace weft::mesh
