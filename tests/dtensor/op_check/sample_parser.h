#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

// Note [Sample language]
// ~~~~~~~~~~~~~~~~~~~~~~
// One sample a line: `op [op ...] : argument, argument, ...`. Ops without
// "aten::", with an overload or without (then every overload that the arguments
// fit). Arguments by position or as name=value; missing ones take the schema's
// default, or none. A line without ops adds a sample to the line before it.
// `#` starts a comment.
//
//   f(4,6)       normal floats          p(4,6)      positive, from 0.25
//   u(4,6)       in (0.05, 0.95)        i(4,6 < 5)  int64 in [0, 5)
//   b(4,6)       bools                  c(4,6)      complex numbers
//   one(4,6)     zero(4,6)              seq(4,6)    0, 1, 2, ...
//   perm(6)      a permutation          perm(4,6)   one a row
//   spd(4,4)     symmetric, positive definite (batches too)
//   tri(4,4)     lower triangular, diagonal from 1
//   f()          0-dim
//   suffixes     .t (last two dims swapped in memory), :bf16 :f32 :f64 :i64 ...
//   [1, 2]  [f(2,3), f(2,3)]  none  true  2  0.5  1e-3  inf  "mean"
//   float64  channels_last  strided   (dtypes, memory formats, layouts)

namespace weft::dtensor::check {

/// A value as it is written, before an argument's type says what it is.
struct Expression {
  enum class Kind {
    kTensor,
    kList,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kName
  };
  Kind kind = Kind::kNone;
  /// The string, the name, or what makes the tensor.
  std::string text = {};
  int64_t integer = 0;
  double real = 0;
  std::vector<Expression> items = {};
  std::vector<int64_t> sizes = {};
  int64_t below = 2;
  bool transposed = false;
  std::string dtype = {};
};

struct SampleArgument {
  /// Empty if given by position.
  std::string name;
  Expression value;
};

struct SampleLine {
  /// "view.txt:12".
  std::string where;
  /// What stands behind the colon.
  std::string text;
  std::vector<std::string> ops;
  std::vector<SampleArgument> arguments;
};

/// Reads one line; nullopt for a blank one.
/// Throws: c10::ValueError naming `where` and what is wrong.
std::optional<SampleLine> parse_line(
    const std::string& line,
    const std::string& where);

/// The arguments as `schema` wants them, or nullopt with `why` said. Other
/// seeds give other values.
std::optional<torch::jit::Stack> bind_arguments(
    const SampleLine& line,
    const c10::FunctionSchema& schema,
    std::string& why,
    uint64_t seed = 7);

} // namespace weft::dtensor::check
