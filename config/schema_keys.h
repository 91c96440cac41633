#pragma once

#include <vector>

#include "config/schema.h"

/// Helpers for the tables of keys in schema_*.cpp.
namespace weft::config::keys {

/// Returns a nested member: member<&Recipe::mesh, &MeshConfig::dp>(recipe) is
/// recipe.mesh.dp.
template <auto... Members>
auto& member(Recipe& recipe) {
  return (recipe.*....*Members);
}

/// Returns a reference to a nested member with a fixed list of values.
template <auto... Members>
ChoiceRef choice(Recipe& recipe) {
  return ChoiceRef(member<Members...>(recipe));
}

constexpr Range at_least(double least) {
  return {.least = least};
}

constexpr Range between(double least, double most) {
  return {.least = least, .most = most};
}

constexpr Range above(double least, double most) {
  return {.least = least, .most = most, .min_excluded = true};
}

constexpr Range or_else(int64_t special, Range range) {
  range.special = special;
  return range;
}

inline constexpr double kMaxSize = 1 << 24;
inline constexpr double kMaxCount = 1e9;

/// The tables, in the order of the documentation.
std::vector<Key> run_keys();
std::vector<Key> model_keys();
std::vector<Key> rope_scaling_keys();
std::vector<Key> tp_keys();
std::vector<Key> ddp_keys();
std::vector<Key> fsdp_keys();
std::vector<Key> comm_keys();
std::vector<Key> elastic_keys();
std::vector<Key> data_keys();
std::vector<Key> train_keys();
std::vector<Key> lora_keys();
std::vector<Key> optimizer_keys();
std::vector<Key> lifecycle_keys();
std::vector<Key> checkpoint_keys();
std::vector<Key> integrity_check_keys();
std::vector<Key> straggler_detection_keys();
std::vector<Key> observability_keys();
std::vector<Key> link_keys();

} // namespace weft::config::keys
