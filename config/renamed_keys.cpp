#include "config/renamed_keys.h"

#include <algorithm>
#include <array>

namespace weft::config {

std::span<const RenamedKey> renamed_keys() {
  static constexpr std::array kTable = {
      RenamedKey{"checkpoint.sync", "checkpoint.fsync"},
      RenamedKey{
          "communication_budget.implicit",
          "communication_budget.implicit_collectives"},
      RenamedKey{"ddp.power_sgd_start", "ddp.power_sgd_start_iter"},
      RenamedKey{"lora.targets", "lora.target_modules"},
      RenamedKey{"sentinel.every", "integrity_check.every"},
      RenamedKey{"sentinel.seal", "integrity_check.hash_weights"},
      RenamedKey{"sentinel.straggler_every", "straggler_detection.every"},
      RenamedKey{"trace.first", "trace.first_step"},
      RenamedKey{"train.non_finite", "train.on_non_finite"},
      RenamedKey{
          "train.non_finite_streak", "train.max_consecutive_non_finite"}};
  return kTable;
}

const RenamedKey* find_renamed_key(std::string_view before) {
  const auto keys = renamed_keys();
  const auto found = std::ranges::find(keys, before, &RenamedKey::before);
  return found == keys.end() ? nullptr : &*found;
}

const RenamedKey* find_renamed_section(std::string_view before) {
  static constexpr RenamedKey kSentinel{"sentinel", "integrity_check"};
  return before == kSentinel.before ? &kSentinel : nullptr;
}

} // namespace weft::config
