#include "mesh/bootstrap/debug_level.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/debug.h>

#include "mesh/bootstrap/env.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

constexpr const char* kVariable = "TORCH_DISTRIBUTED_DEBUG";

struct Level {
  DebugLevel ours;
  c10d::DebugLevel theirs;
  std::string_view name;
};

constexpr std::array<Level, 3> kLevels{{
    {DebugLevel::kOff, c10d::DebugLevel::Off, "OFF"},
    {DebugLevel::kInfo, c10d::DebugLevel::Info, "INFO"},
    {DebugLevel::kDetail, c10d::DebugLevel::Detail, "DETAIL"},
}};

template <class Matches>
const Level* find_level(const Matches& matches) {
  const auto* found = std::find_if(kLevels.begin(), kLevels.end(), matches);
  return found == kLevels.end() ? nullptr : &*found;
}

const Level& level_of(DebugLevel ours) {
  const auto* level =
      find_level([ours](const Level& each) { return each.ours == ours; });
  TORCH_INTERNAL_ASSERT(level, "no such level");
  return *level;
}

} // namespace

DebugLevel get_debug_level() noexcept {
  const auto theirs = c10d::debug_level();
  const auto* level =
      find_level([theirs](const Level& each) { return each.theirs == theirs; });
  return level ? level->ours : DebugLevel::kOff;
}

void set_debug_level(DebugLevel level) {
  c10d::setDebugLevel(level_of(level).theirs);
}

void set_debug_level_from_env() {
  const auto value = env::get(kVariable);
  if (!value) {
    return;
  }
  std::string upper = *value;
  std::transform(
      upper.begin(), upper.end(), upper.begin(), [](unsigned char c) {
        return static_cast<char>(std::toupper(c));
      });
  const auto* level =
      find_level([&](const Level& each) { return each.name == upper; });
  if (!level) {
    throw_error<UsageError>(detail::concat(
        "[environment] ",
        kVariable,
        "=",
        *value,
        " is unknown. Use OFF, INFO or DETAIL."));
  }
  set_debug_level(level->ours);
}

std::string_view to_string(DebugLevel level) {
  return level_of(level).name;
}

} // namespace weft::mesh
