#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/dtensor/op_check/report.h"

namespace weft::dtensor::check {

/// PyTorch's registered packets by family, in the file's order.
struct Registry {
  explicit Registry(const std::filesystem::path& file);

  std::vector<std::string> families;
  std::map<std::string, std::vector<std::string>> packets;
  /// By packet.
  std::map<std::string, std::string> family_of;
};

/// How many packets of a family are what.
struct FamilyCount {
  int64_t pytorch = 0;
  int64_t sharded = 0;
  int64_t replicated = 0;
  /// "prims::" has no op in C++.
  int64_t python_only = 0;
  /// With those that PyTorch does not register, by the file of their samples.
  int64_t all_sharded = 0;
  std::vector<std::string> replicated_names;
  std::vector<std::string> refused_names;
  /// With a rule for another device's kernel.
  std::vector<std::string> unproven_names;
};

struct Coverage {
  /// PyTorch's packets by family; "total" last.
  std::vector<std::pair<std::string, FamilyCount>> families;
  /// All packets here, whether PyTorch registers them or not.
  int64_t sharded = 0;
  int64_t replicated = 0;
};

Coverage count_coverage(const Report& report, const Registry& registry);

/// docs/dtensor_ops.md: what each op does with cut tensors.
std::string coverage_table(const Report& report, const Registry& registry);

/// Its last sections: part D's programs, part E's cases and part F's mixes by
/// family.
std::string chain_table(const Report& report);
std::string leaf_table(const Report& report);
std::string operand_table(const Report& report);
/// The table as it stands in `file`: up to those sections, and from there on.
std::pair<std::string, std::string> kept_tables(
    const std::filesystem::path& file);

} // namespace weft::dtensor::check
