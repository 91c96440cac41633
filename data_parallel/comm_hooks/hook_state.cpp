#include "data_parallel/comm_hooks/hook_state.h"

#include <torch/torch.h>

#include "mesh/error/error.h"

namespace weft::data_parallel {

at::Tensor to_entry(const std::vector<int64_t>& numbers) {
  return at::tensor(numbers, at::kLong);
}

std::vector<int64_t> numbers_of(
    const CommHook& hook,
    const CommHook::State& state,
    const std::string& key,
    int64_t count) {
  const auto where = [&] {
    return mesh::ErrorContext{"comm hook " + hook.name()};
  };
  const auto found = state.find(key);
  WEFT_CHECK(
      found != state.end(),
      "ddp",
      where(),
      "the hook's state has no entry \"",
      key,
      "\". Load a state that was saved with this kind of hook.");
  const auto& entry = found->second;
  WEFT_CHECK(
      entry.defined() && entry.scalar_type() == at::kLong &&
          entry.numel() == count,
      "ddp",
      where(),
      "the entry \"",
      key,
      "\" of the hook's state must hold ",
      count,
      " int64 values. Load a state that was saved with this kind of hook.");
  const auto local = entry.to(at::kCPU).contiguous();
  const auto* data = local.const_data_ptr<int64_t>();
  return {data, data + count};
}

void throw_bad_entry(const CommHook& hook, const std::string& key) {
  mesh::throw_error<c10::ValueError>(mesh::detail::concat(
      "[ddp] the hook does not use the entry \"",
      key,
      "\". Load a state that was saved with this kind of hook. (comm hook ",
      hook.name(),
      ")"));
}

} // namespace weft::data_parallel
