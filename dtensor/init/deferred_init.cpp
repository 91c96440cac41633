#include "dtensor/init/deferred_init.h"

#include <algorithm>

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/init/meta_kernels.h"
#include "dtensor/random/random.h"
#include "dtensor/redistribute/redistribute.h"
#include "dtensor/tensor/copied_view.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/gradient.h"
#include "dtensor/tensor/parameter_info.h"
#include "dtensor/tensor/registration.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

using Kind = InitStep::Kind;

double number(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().item<double>();
  }
  return value.toScalar().toDouble();
}

bool is_plain_scalar(const c10::IValue& value) {
  return value.isScalar() ||
         (value.isTensor() && value.toTensor().defined() &&
          !is_dtensor(value.toTensor()) && value.toTensor().dim() == 0);
}

// Returns the step that an op call adds to the initialization of its first
// argument, or nullopt if it is not such a step.
std::optional<InitStep> read_step(const OpCall& call) {
  const auto& args = call.arguments;
  std::string_view name = call.name();
  name.remove_prefix(std::string_view("aten::").size());
  if (name.ends_with('_')) {
    name.remove_suffix(1);
  } else if (name == "uniform" || name == "normal" || name == "fill") {
    return std::nullopt;
  }
  if (name == "uniform") {
    return InitStep{Kind::kUniform, number(args[1]), number(args[2])};
  }
  if (name == "normal") {
    return InitStep{Kind::kNormal, number(args[1]), number(args[2])};
  }
  if (name == "zero") {
    return InitStep{Kind::kFill, 0.0};
  }
  if (args.size() < 2 || !is_plain_scalar(args[1])) {
    return std::nullopt;
  }
  const double value = number(args[1]);
  const bool plain_alpha =
      args.size() < 3 ||
      (args[2].isScalar() && args[2].toScalar().toDouble() == 1.0);
  if (name == "fill") {
    return InitStep{Kind::kFill, value};
  }
  if (name == "mul") {
    return InitStep{Kind::kScale, value};
  }
  if (name == "div" && args.size() == 2) {
    return InitStep{Kind::kScale, 1.0 / value};
  }
  if (name == "add" && plain_alpha) {
    return InitStep{Kind::kShift, value};
  }
  if (name == "sub" && plain_alpha) {
    return InitStep{Kind::kShift, -value};
  }
  return std::nullopt;
}

void append(DeferredState& state, const InitStep& step) {
  if (step.overwrites_all()) {
    state.steps.clear();
    state.stream = nullptr;
  }
  state.steps.push_back(step);
}

void apply_steps(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef sizes,
    const std::vector<InitStep>& steps,
    RandomKey key) {
  for (const auto& step : steps) {
    switch (step.kind) {
      case Kind::kFill:
        local.fill_(step.a);
        break;
      case Kind::kUniform:
        fill_uniform(local, box, sizes, key, step.a, step.b);
        break;
      case Kind::kNormal:
        fill_normal(local, box, sizes, key, step.a, step.b);
        break;
      case Kind::kScale:
        local.mul_(step.a);
        break;
      case Kind::kShift:
        local.add_(step.a);
        break;
      case Kind::kFillSlice: {
        const int64_t index = step.index - box.offset[step.dim];
        if (index >= 0 && index < box.sizes[step.dim]) {
          local.select(step.dim, index).fill_(step.a);
        }
      }
    }
  }
}

at::Tensor make_deferred(
    const at::Tensor& memory,
    std::shared_ptr<DeferredState> state) {
  auto tensor =
      at::detail::make_tensor<DTensorImpl>(DTensorImpl::WithData{}, memory);
  dtensor_impl(tensor)->deferred = std::move(state);
  return tensor;
}

void write_constants(DTensorImpl& impl) {
  const std::vector<int64_t> zeros(impl.dim(), 0);
  apply_steps(
      impl.local(),
      {zeros, impl.sizes().vec()},
      impl.sizes(),
      impl.deferred->steps,
      {});
  impl.deferred->steps.clear();
}

// Writes pending constants into the reserved memory, so that an op can read
// them. Throws for random values, which do not exist before materialize().
void flush(DTensorImpl& impl, const OpCall& call) {
  TORCH_CHECK_VALUE(
      !impl.deferred->is_random(),
      "[",
      call.name(),
      "] reads random initial values of a tensor of sizes ",
      impl.sizes(),
      " that do not exist before materialize(). Initialize it with uniform_, "
      "normal_, fill_, and multiples of those, or compute after "
      "materialize().");
  write_constants(impl);
}

// Returns true for tensors of at most 16 MiB. Their constants are written at
// once, so that code that then writes single elements (accessors, views) finds
// them.
bool is_small(const DTensorImpl& impl) {
  constexpr int64_t kBytes = int64_t{16} << 20;
  return impl.numel() * static_cast<int64_t>(impl.itemsize()) <= kBytes;
}

void make_deferred_result(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  // The other factories call empty or empty_strided. scalar_tensor, which
  // creates torch::tensor(0), calls no other factory.
  if (name != "aten::empty" && name != "aten::empty_strided" &&
      name != "aten::scalar_tensor") {
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(
                   c10::DispatchKeySet::FULL_AFTER,
                   c10::DispatchKey::DeferredInit),
        stack);
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard exclude(
      c10::DispatchKey::DeferredInit);
  op.callBoxed(stack);
  const auto memory = stack->back().toTensor();
  if (!is_dtensor(memory)) {
    stack->back() = make_deferred(memory, std::make_shared<DeferredState>());
  }
}

at::Tensor shard_of_memory(const DTensorImpl& impl, const LocalBox& box) {
  auto local = impl.local();
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    local = local.narrow(static_cast<int64_t>(d), box.offset[d], box.sizes[d]);
  }
  return local.clone(at::MemoryFormat::Contiguous);
}

} // namespace

DeferredInit::DeferredInit()
    : guard_((ensure_dispatch_registered(), c10::DispatchKey::DeferredInit)) {}

namespace {

// Returns the dtype that a `.to(dtype)` of a deferred tensor requests, or
// nullopt for other calls and for dtypes that are not floating point.
std::optional<at::ScalarType> converted_dtype(
    const OpCall& call,
    const DTensorImpl& impl) {
  if (call.name() != "aten::_to_copy" || impl.deferred->whole ||
      !call.arguments[1].isInt() ||
      !(call.arguments[3].isNone() ||
        call.arguments[3].toDevice() == impl.local().device())) {
    return std::nullopt;
  }
  const auto dtype = call.arguments[1].toScalarType();
  return c10::isFloatingType(dtype) &&
                 c10::isFloatingType(impl.local().scalar_type())
             ? std::optional(dtype)
             : std::nullopt;
}

// Returns a tensor with the same initialization in another dtype, so that
// Module::to(dtype) works before materialize().
at::Tensor convert(const DTensorImpl& impl, at::ScalarType dtype) {
  const auto& local = impl.local();
  return make_deferred(
      impl.deferred->overwrites()
          ? at::empty_like(local, local.options().dtype(dtype))
          : local.to(dtype),
      std::make_shared<DeferredState>(*impl.deferred));
}

// Records the step of an in-place op. Returns false if the op has to run now.
bool record_in_place(DTensorImpl& impl, const InitStep& step) {
  auto& state = *impl.deferred;
  if (state.whole) {
    if (state.whole->whole) {
      return false;
    }
    if (step.kind == Kind::kFill) {
      state.whole->steps.push_back(
          {Kind::kFillSlice, step.a, 0, state.dim, state.index});
    }
    return step.kind == Kind::kFill;
  }
  append(state, step);
  if (!state.is_random() && is_small(impl)) {
    write_constants(impl);
  }
  return true;
}

// Returns the state of the new tensor that an op creates, or null if the op has
// to run now.
std::shared_ptr<DeferredState> state_of_result(
    const OpCall& call,
    const DTensorImpl& impl) {
  const auto& name = call.name();
  const auto& state = *impl.deferred;
  if (name == "aten::detach" || name == "aten::alias") {
    return impl.deferred;
  }
  // A slice of a slice gets a state because nn::init reads its sizes.
  // record_in_place() does not record writes to it.
  const bool is_select = name == "aten::select" && state.is_random();
  const bool is_clone = name == "aten::clone";
  const bool is_written = !state.is_random() && is_small(impl);
  if ((state.whole && !is_select) || (is_written && !is_clone)) {
    return nullptr;
  }
  if (is_select) {
    auto slice = std::make_shared<DeferredState>();
    slice->whole = impl.deferred;
    slice->dim = call.dim_argument(1, impl.dim());
    const int64_t index = call.arguments[2].toInt();
    slice->index = index < 0 ? index + impl.sizes()[slice->dim] : index;
    return slice;
  }
  if (is_clone) {
    if (state.is_random() && !impl.deferred->stream) {
      impl.deferred->stream = std::make_shared<std::string>();
    }
    return std::make_shared<DeferredState>(*impl.deferred);
  }
  const auto step = read_step(call);
  if (!step || !c10::isFloatingType(call.tensors[0].tensor.scalar_type())) {
    return nullptr;
  }
  auto result = std::make_shared<DeferredState>(state);
  append(*result, *step);
  return result;
}

at::Tensor memory_of_result(
    const DTensorImpl& impl,
    const DeferredState& state) {
  if (&state == impl.deferred.get()) {
    return impl.local().detach();
  }
  if (state.whole) {
    return impl.local().select(state.dim, state.index);
  }
  return impl.deferred->overwrites() ? at::empty_like(impl.local())
                                     : impl.local().clone();
}

bool takes_generator(const c10::OperatorHandle& op) {
  return op.schema().argumentIndexWithName("generator").has_value();
}

} // namespace

bool run_deferred(const OpCall& call, torch::jit::Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard plain(
      c10::DispatchKey::DeferredInit);
  // An op that only writes, such as arange.start_out, has no input tensor.
  const auto self =
      call.tensors.empty() ? at::Tensor() : call.tensors[0].tensor;
  auto* impl = dtensor_impl(self);
  if (impl && impl->deferred && call.tensors[0].argument == 0) {
    at::Tensor result;
    if (call.is_inplace()) {
      const auto step = read_step(call);
      if (step && record_in_place(*impl, *step)) {
        result = self;
      }
    } else if (const auto dtype = converted_dtype(call, *impl)) {
      result = convert(*impl, *dtype);
    } else if (auto state = state_of_result(call, *impl)) {
      result = make_deferred(memory_of_result(*impl, *state), state);
    }
    if (result.defined()) {
      torch::jit::drop(stack, call.arguments.size());
      stack.emplace_back(std::move(result));
      return true;
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      !takes_generator(call.op),
      "[",
      call.name(),
      "] draws random numbers that would differ between ranks. Initialize with "
      "uniform_ or normal_, or after materialize().");
  const auto flush_all = [&](const std::vector<TensorArgument>& tensors) {
    for (const auto& each : tensors) {
      auto* deferred = dtensor_impl(each.tensor);
      if (deferred && deferred->deferred) {
        if (deferred->spec().mesh_ndim() != 0) {
          check_materialized(each.tensor, call.name());
        }
        flush(*deferred, call);
      }
    }
  };
  flush_all(call.tensors);
  flush_all(call.outs);
  return false;
}

namespace {

// Returns the key of a tensor's random values: its name, or the name of the
// first of its clones that was materialized.
const std::string& stream_name(DeferredState& state, const std::string& name) {
  if (!state.stream) {
    return name;
  }
  if (state.stream->empty()) {
    *state.stream = name;
  }
  return *state.stream;
}

void move_to(const at::Tensor& tensor, c10::Device device) {
  if (tensor.device() == device) {
    return;
  }
  const at::NoGradGuard no_grad;
  if (auto* impl = dtensor_impl(tensor)) {
    impl->move_local(impl->local().to(device));
  } else {
    tensor.set_data(tensor.to(device));
  }
}

} // namespace

namespace {

std::optional<c10::Device> device_of_mesh(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  return impl && impl->spec().mesh_ndim() > 0
             ? std::optional(impl->spec().mesh().world().device())
             : std::nullopt;
}

} // namespace

void materialize_tensor(
    const at::Tensor& tensor,
    uint64_t seed,
    const std::string& name,
    std::optional<c10::Device> wanted) {
  const auto device = wanted.value_or(
      device_of_mesh(tensor).value_or(c10::Device(c10::DeviceType::CPU)));
  if (device.is_meta()) {
    ensure_meta_kernels();
  }
  auto* impl = dtensor_impl(tensor);
  if (!impl || !impl->deferred) {
    move_to(tensor, device);
  }
  if (!impl) {
    return;
  }
  if (parameter_info(tensor).fqn.empty()) {
    impl->parameter_info->fqn = name;
  }
  if (impl->deferred) {
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard plain(
        c10::DispatchKey::DeferredInit);
    const auto state = std::move(impl->deferred);
    impl->deferred = nullptr;
    const auto box = local_box(impl->spec(), impl->sizes());
    at::Tensor local;
    local = state->overwrites() || device.is_meta()
                ? at::empty(box.sizes, impl->local().options().device(device))
                : shard_of_memory(*impl, box).to(device);
    if (!device.is_meta()) {
      apply_steps(
          local,
          box,
          impl->sizes(),
          state->steps,
          {seed, stream_of(stream_name(*state, name))});
    }
    impl->move_local(std::move(local));
  }
  match_gradient_placement(tensor);
}

void materialize(
    torch::nn::Module& module,
    uint64_t seed,
    std::optional<c10::Device> device) {
  for (const auto& tensors : {module.parameters(), module.buffers()}) {
    for (const auto& tensor : tensors) {
      device = device ? device : device_of_mesh(tensor);
    }
  }
  for (const auto& item : module.named_parameters()) {
    materialize_tensor(item.value(), seed, item.key(), device);
  }
  for (const auto& item : module.named_buffers()) {
    materialize_tensor(item.value(), seed, item.key(), device);
  }
}

void set_placements(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements) {
  auto* impl = dtensor_impl(tensor);
  TORCH_CHECK_VALUE(
      impl != nullptr,
      "[set_placements] a plain tensor of sizes ",
      tensor.sizes(),
      " cannot become a DTensor in place. Build the model inside "
      "weft::dtensor::DeferredInit.");
  Placements normal;
  for (const auto& placement : placements) {
    normal.push_back(placement.normalized(tensor.dim()));
  }
  const DTensorSpec target(mesh, normal);
  if (impl->spec() == target) {
    return;
  }
  if (impl->deferred) {
    TORCH_CHECK_VALUE(
        impl->spec().mesh_ndim() == 0 || impl->spec().mesh() == mesh,
        "[set_placements] ",
        describe(tensor),
        " is on another mesh than ",
        mesh.to_string(),
        " already.");
    impl->reset_local(impl->local(), target);
    return;
  }
  TORCH_CHECK_VALUE(
      impl->spec().mesh_ndim() == 0,
      "[set_placements] ",
      describe(tensor),
      " has values and a placement already. Use redistribute().");
  const at::NoGradGuard no_grad;
  const auto box = local_box(target, impl->sizes());
  impl->reset_local(shard_of_memory(*impl, box), target);
}

void register_deferred_init(torch::Library& library) {
  library.fallback(
      torch::CppFunction::makeFromBoxedFunction<&make_deferred_result>());
}

} // namespace weft::dtensor
