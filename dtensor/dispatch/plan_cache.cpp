#include "dtensor/dispatch/plan_cache.h"

#include <bit>
#include <mutex>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "dtensor/spec/mesh_arguments.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_hooks.h"

namespace weft::dtensor {

// Note [Plan cache]
// ~~~~~~~~~~~~~~~~~
// A plan is a function of the op, of the specs, global sizes, strides and
// dtypes of the tensors, and of the plain arguments. These words are the key,
// which is read without allocating unless it is long. The cache belongs to the
// mesh and is shared by all threads of a rank. Its size is bounded: when the
// young half is full, it replaces the old half, whose plans are dropped. A plan
// that is found in the old half is added to the young one. So shapes that
// change every step do not accumulate.

namespace {

struct KeyHash {
  size_t operator()(const PlanKey& key) const {
    uint64_t hash = 0x9e3779b97f4a7c15ULL;
    for (const int64_t word : key) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0xff51afd7ed558ccdULL;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

class PlanCache {
 public:
  using Plan = std::shared_ptr<const OpPlan>;

  Plan find(const PlanKey& key) {
    const std::lock_guard lock(mutex_);
    if (const auto it = young_.find(key); it != young_.end()) {
      return it->second;
    }
    const auto it = old_.find(key);
    if (it == old_.end()) {
      return nullptr;
    }
    auto plan = it->second;
    insert_recent(key, plan);
    return plan;
  }

  void insert(const PlanKey& key, Plan plan) {
    const std::lock_guard lock(mutex_);
    insert_recent(key, std::move(plan));
  }

 private:
  static constexpr size_t kHalf = 4096;
  using Map = std::unordered_map<PlanKey, Plan, KeyHash>;

  void insert_recent(const PlanKey& key, Plan plan) {
    if (young_.size() >= kHalf) {
      old_ = std::exchange(young_, {});
    }
    young_.emplace(key, std::move(plan));
  }

  std::mutex mutex_;
  Map young_;
  Map old_;
};

void unify_meshes(OpCall& call) {
  const auto unify = [&](TensorArgument& input) {
    if (!input.spec || input.spec->mesh() == call.mesh()) {
      return;
    }
    TORCH_CHECK_VALUE(
        input.spec->mesh_ndim() == 0,
        "[",
        call.name(),
        "] mixes meshes: ",
        describe_meshes(call.mesh(), input.spec->mesh()),
        "; arguments ",
        describe_arguments(call),
        ". Redistribute to one mesh first. (",
        call.mesh().describe_rank(),
        ")");
    input.spec = call.common.with(Placements(call.mesh().ndim(), Replicate()));
  };
  std::ranges::for_each(call.tensors, unify);
  std::ranges::for_each(call.outs, unify);
}

// Throws an error of libtorch's own checks of sizes and arguments again, as a
// c10::ValueError with operands and rank. Returns for internal assertions and
// for errors of other types.
void refuse_as_value_error(const OpCall& call, const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  TORCH_CHECK_VALUE(
      typeid(error) != typeid(c10::Error) ||
          text.find("INTERNAL ASSERT") != std::string::npos,
      "[",
      call.name(),
      "] ",
      text,
      "; arguments ",
      describe_arguments(call),
      ". (",
      call.mesh().describe_rank(),
      ")");
}

std::shared_ptr<const OpPlan> make_plan(
    const c10::OperatorHandle& op,
    Arguments arguments) {
  auto call = read_call(op, arguments);
  unify_meshes(call);
  try {
    return std::make_shared<const OpPlan>(make_op_plan(call));
  } catch (const c10::Error& error) {
    refuse_as_value_error(call, error);
    throw;
  }
}

} // namespace

CallReader::CallReader(const c10::OperatorHandle& op, Arguments arguments) {
  key_.push_back(reinterpret_cast<int64_t>(&op.schema()));
  for (const auto& value : arguments) {
    read(value);
  }
  if (parameter_hooks_) {
    check_hooked();
  }
}

void CallReader::check_hooked() const {
  for (const auto& [impl, spec] : hooked_) {
    TORCH_CHECK_VALUE(
        impl->spec().id() == spec,
        "one op reads parameters of three or more sharded units, and the first "
        "was resharded for the last. Make one unit of their modules: "
        "fully_shard({&first, &second, ...}, mesh).");
  }
}

void CallReader::read(const c10::IValue& value) {
  if (value.isTensor()) {
    read_tensor(value.toTensor());
  } else if (value.isNone()) {
    key_.push_back(kNone);
  } else if (value.isInt()) {
    key_.push_back(kInt);
    key_.push_back(value.toInt());
  } else if (value.isBool()) {
    key_.push_back(kBool);
    key_.push_back(value.toBool());
  } else if (value.isDouble()) {
    key_.append({kDouble, std::bit_cast<int64_t>(value.toDouble())});
  } else if (value.isDevice()) {
    const auto device = value.toDevice();
    key_.append({kDevice, static_cast<int64_t>(device.type()), device.index()});
  } else if (value.isList()) {
    read_list(value.toListRef());
  } else if (value.isString()) {
    const auto text = value.toStringView();
    key_.append({kText, static_cast<int64_t>(text.size())});
    key_.append(text.begin(), text.end());
  } else {
    cachable_ = false;
  }
}

void CallReader::read_list(c10::ArrayRef<c10::IValue> list) {
  key_.append({kList, static_cast<int64_t>(list.size())});
  for (const auto& element : list) {
    if (element.isInt()) {
      key_.push_back(element.toInt());
    } else {
      read(element);
    }
  }
}

void CallReader::read_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    key_.push_back(kNone);
    return;
  }
  const auto dtype = static_cast<int64_t>(tensor.scalar_type()) << 8;
  auto* impl = dtensor_impl(tensor);
  if (!impl) {
    has_plain_ |= tensor.dim() != 0;
    key_.push_back(kPlain | dtype);
    return;
  }
  if (impl->parameter_hooks) {
    parameter_hooks_ = &impl->parameter_hooks;
    impl->parameter_hooks->before_use(/*is_forward=*/false);
    hooked_.emplace_back(impl, impl->spec().id());
  }
  has_deferred_ |= impl->deferred != nullptr;
  has_copied_view_ |= impl->copied_view != nullptr;
  if (!common_ && impl->spec().mesh_ndim() != 0) {
    common_ = &impl->spec();
  }
  const auto sizes = impl->sizes();
  const auto strides = impl->strides();
  const size_t begin = key_.size();
  key_.resize_for_overwrite(begin + 2 + 2 * sizes.size());
  auto* word = &key_[begin];
  *word++ = kTensor | dtype | (impl->dim() << 16);
  *word++ = reinterpret_cast<int64_t>(impl->spec().id());
  for (size_t i = 0; i < sizes.size(); ++i) {
    *word++ = sizes[i];
    *word++ = strides[i];
  }
}

std::shared_ptr<const OpPlan> find_plan(
    const CallReader& reader,
    const c10::OperatorHandle& op,
    Arguments arguments) {
  if (!reader.cachable()) {
    return make_plan(op, arguments);
  }
  auto& cache = reader.common()->mesh().extension<PlanCache>();
  if (auto plan = cache.find(reader.key())) {
    return plan;
  }
  auto plan = make_plan(op, arguments);
  cache.insert(reader.key(), plan);
  return plan;
}

} // namespace weft::dtensor
