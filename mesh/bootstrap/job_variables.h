#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>

#include "mesh/bootstrap/job_rank.h"

namespace weft::mesh {

/// The largest Slurm job or step number: 32 bits.
constexpr int64_t kMaxSlurmId = std::numeric_limits<uint32_t>::max();

/// Reads the variables of one launcher and reports errors in them.
/// Lifetime: `lookup` must outlive this object.
class JobVariables {
 public:
  explicit JobVariables(const VariableLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const char* name) const {
    return lookup_(name);
  }
  bool has(const char* name) const { return text(name).has_value(); }
  bool has_any(std::initializer_list<const char*> names) const;
  /// Returns the first of `names` that is set, or the first one if none is.
  const char* first_set(std::initializer_list<const char*> names) const;
  /// Returns "NAME=value" or "NAME unset".
  std::string show(const char* name) const;

  /// Returns an integer in [least, most], or nothing if the variable is not
  /// set.
  /// Throws: UsageError naming the variable, its value and the range.
  std::optional<int64_t> number(const char* name, int64_t least, int64_t most)
      const;

  /// Returns the value of `name`.
  /// Throws: UsageError if `name` is not set; the message says that `because`
  /// is set.
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
