#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>

#include "mesh/bootstrap/job_rank.h"

namespace weft::mesh {

/// Slurm's numbers of jobs and steps have 32 bits.
constexpr int64_t kMaxSlurmId = std::numeric_limits<uint32_t>::max();

/// A launcher's variables, with messages for what is wrong in them.
/// Lifetime: of the lookup.
class JobVariables {
 public:
  explicit JobVariables(const VariableLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const char* name) const {
    return lookup_(name);
  }
  bool has(const char* name) const { return text(name).has_value(); }
  bool has_any(std::initializer_list<const char*> names) const;
  /// The first of `names` that is set, or else the first.
  const char* first_set(std::initializer_list<const char*> names) const;
  /// "NAME=value", or "NAME unset".
  std::string show(const char* name) const;

  /// A whole number in [least, most].
  /// Throws: UsageError naming the variable, its value and the range.
  std::optional<int64_t> number(const char* name, int64_t least, int64_t most)
      const;

  /// Throws: UsageError if `name` is not set, naming `because`, which is.
  std::string required_text(const char* name, const char* because) const;
  int64_t required(
      const char* name,
      const char* because,
      int64_t least,
      int64_t most) const;

 private:
  const VariableLookup& lookup_;
};

} // namespace weft::mesh
