#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data_parallel/comm_hooks/comm_hook.h"

namespace weft::data_parallel {

/// Returns numbers as an entry of a hook's state. Shape [n].
at::Tensor to_entry(const std::vector<int64_t>& numbers);

/// Returns the entry `key` of `state` as `count` numbers.
/// Throws: c10::ValueError naming the hook and the key, if it is missing or
/// does not have `count` integers.
std::vector<int64_t> numbers_of(
    const CommHook& hook,
    const CommHook::State& state,
    const std::string& key,
    int64_t count);

/// Throws: c10::ValueError saying that the hook's state has no valid entry
/// `key`.
[[noreturn]] void throw_bad_entry(const CommHook& hook, const std::string& key);

} // namespace weft::data_parallel
