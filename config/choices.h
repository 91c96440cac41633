#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

/// The enums of recipe keys with a fixed list of values. choice_names() has the
/// values as recipes write them, in the order of the enumerators, and is the
/// only place with these texts.
namespace weft::config {

/// Returns the names of an enum from literals.
template <size_t N>
constexpr std::array<std::string_view, N> names(
    const std::string_view (&literals)[N]) {
  return std::to_array(literals);
}

/// device
enum class Device { kCpu, kCuda };
constexpr auto choice_names(Device /*type*/) {
  return names({"cpu", "cuda"});
}

/// products
enum class Products { kAuto, kLibtorch, kOneDnn };
constexpr auto choice_names(Products /*type*/) {
  return names({"auto", "libtorch", "onednn"});
}

/// cost_model
enum class CostModel { kDefault, kMeasure };
constexpr auto choice_names(CostModel /*type*/) {
  return names({"default", "measure"});
}

/// model.rope_scaling.rope_type
enum class RopeType { kNone, kLinear, kLlama3 };
constexpr auto choice_names(RopeType /*type*/) {
  return names({"none", "linear", "llama3"});
}

/// tp.async
enum class AsyncTp { kAuto, kOn, kOff };
constexpr auto choice_names(AsyncTp /*type*/) {
  return names({"auto", "on", "off"});
}

/// ddp.bucket_mode
enum class BucketMode { kConcatenated, kCoalesced, kPerParameter };
constexpr auto choice_names(BucketMode /*type*/) {
  return names({"concatenated", "coalesced", "per_parameter"});
}

/// ddp.comm_hook
enum class DdpCommHook {
  kNone,
  kBf16Compress,
  kFp16Compress,
  kQuantizationPerTensor,
  kQuantizationPerChannel,
  kPowerSgd,
  kBatchedPowerSgd
};
constexpr auto choice_names(DdpCommHook /*type*/) {
  return names(
      {"none",
       "bf16_compress",
       "fp16_compress",
       "quantization_pertensor",
       "quantization_perchannel",
       "powersgd",
       "batched_powersgd"});
}

constexpr bool is_power_sgd(DdpCommHook hook) {
  return hook == DdpCommHook::kPowerSgd ||
         hook == DdpCommHook::kBatchedPowerSgd;
}

/// fsdp.comm_hook
enum class FsdpCommHook { kNone, kBf16Compress, kFp16Compress };
constexpr auto choice_names(FsdpCommHook /*type*/) {
  return names({"none", "bf16_compress", "fp16_compress"});
}

/// ddp.param_dtype and fsdp.param_dtype
enum class ParamDtype { kNone, kBFloat16 };
constexpr auto choice_names(ParamDtype /*type*/) {
  return names({"none", "bfloat16"});
}

/// ddp.reduce_dtype and fsdp.reduce_dtype
enum class ReduceDtype { kNone, kFloat32, kBFloat16 };
constexpr auto choice_names(ReduceDtype /*type*/) {
  return names({"none", "float32", "bfloat16"});
}

/// fsdp.reshard_after_forward
enum class ReshardAfterForward { kAuto, kAlways, kNever };
constexpr auto choice_names(ReshardAfterForward /*type*/) {
  return names({"auto", "always", "never"});
}

/// fsdp.backward_prefetch
enum class BackwardPrefetch { kPre, kPost, kNone };
constexpr auto choice_names(BackwardPrefetch /*type*/) {
  return names({"pre", "post", "none"});
}

/// fsdp.accumulate
enum class Accumulate { kSharded, kLocal };
constexpr auto choice_names(Accumulate /*type*/) {
  return names({"sharded", "local"});
}

/// elastic.batch
enum class ElasticBatch { kNone, kExact, kFixed };
constexpr auto choice_names(ElasticBatch /*type*/) {
  return names({"none", "exact", "fixed"});
}

/// data.type
enum class DataType { kText, kTokens, kDigits };
constexpr auto choice_names(DataType /*type*/) {
  return names({"text", "tokens", "digits"});
}

/// data.format
enum class TokenFormat { kAuto, kRaw, kLlmC, kMegatron };
constexpr auto choice_names(TokenFormat /*type*/) {
  return names({"auto", "raw", "llm.c", "megatron"});
}

/// data.dtype
enum class TokenDtype { kAuto, kUint16, kUint32 };
constexpr auto choice_names(TokenDtype /*type*/) {
  return names({"auto", "uint16", "uint32"});
}

/// train.dtype
enum class TrainDtype { kFloat32, kBFloat16 };
constexpr auto choice_names(TrainDtype /*type*/) {
  return names({"float32", "bfloat16"});
}

/// train.activation_checkpoint
enum class ActivationCheckpoint { kNone, kFull, kSelective };
constexpr auto choice_names(ActivationCheckpoint /*type*/) {
  return names({"none", "full", "selective"});
}

/// train.on_non_finite
enum class OnNonFinite { kStop, kSkip };
constexpr auto choice_names(OnNonFinite /*type*/) {
  return names({"stop", "skip"});
}

/// optimizer.type
enum class OptimizerType { kAdamW };
constexpr auto choice_names(OptimizerType /*type*/) {
  return names({"adamw"});
}

/// lr_schedule.type
enum class LrScheduleType { kCosine, kLinear, kConstant };
constexpr auto choice_names(LrScheduleType /*type*/) {
  return names({"cosine", "linear", "constant"});
}

/// checkpoint.checksum
enum class Checksum { kXxh3, kSha256 };
constexpr auto choice_names(Checksum /*type*/) {
  return names({"xxh3", "sha256"});
}

/// checkpoint.resume
enum class Resume { kAuto, kNever };
constexpr auto choice_names(Resume /*type*/) {
  return names({"auto", "never"});
}

/// checkpoint.init_strict
enum class InitStrict { kExact, kMissingOk, kUnexpectedOk, kBothOk };
constexpr auto choice_names(InitStrict /*type*/) {
  return names({"exact", "missing_ok", "unexpected_ok", "both_ok"});
}

/// An enum with choice_names().
template <class E>
concept Choice = requires(E choice) {
  choice_names(choice);
};

template <Choice E>
inline constexpr auto kChoiceNames = choice_names(E());

/// Returns the value as recipes write it.
template <Choice E>
constexpr std::string_view to_string(E choice) {
  return kChoiceNames<E>[static_cast<size_t>(choice)];
}

/// Lets fmt format a choice.
template <Choice E>
constexpr std::string_view format_as(E choice) {
  return to_string(choice);
}

/// Returns the choice with that name. Empty if there is none.
template <Choice E>
constexpr std::optional<E> choice_of(std::string_view name) {
  const auto& all = kChoiceNames<E>;
  const auto found = std::find(all.begin(), all.end(), name);
  return found == all.end() ? std::nullopt
                            : std::optional(E(found - all.begin()));
}

/// A reference to a field of any of these enums.
class ChoiceRef {
 public:
  template <Choice E>
  explicit ChoiceRef(E& field)
      : field_(&field),
        names_(kChoiceNames<E>),
        get_([](const void* at) {
          return static_cast<size_t>(*static_cast<const E*>(at));
        }),
        set_([](void* at, size_t index) { *static_cast<E*>(at) = E(index); }) {}

  ChoiceRef(const ChoiceRef&) = default;
  /// Deleted, because it would leave the fields unchanged. See set().
  ChoiceRef& operator=(const ChoiceRef&) = delete;

  const void* field() const { return field_; }
  std::span<const std::string_view> names() const { return names_; }
  /// The position of the field's value in names().
  size_t index() const { return get_(field_); }
  std::string_view name() const { return names_[index()]; }
  /// Sets the field to names()[index].
  void set(size_t index) const { set_(field_, index); }

 private:
  void* field_;
  std::span<const std::string_view> names_;
  size_t (*get_)(const void*);
  void (*set_)(void*, size_t);
};

} // namespace weft::config
