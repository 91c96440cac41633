#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace weft::dtensor::check {

/// After so many an op is given up.
constexpr int64_t kFailuresPerOp = 3;

struct Failure {
  /// "samples", "strategies", "search", "dispatch", "chains", "leaves",
  /// "operands".
  std::string part;
  /// "add.Tensor".
  std::string op;
  /// "pointwise.txt:3".
  std::string where;
  /// Sample, mesh and placements.
  std::string what;
  std::string message;
};

/// The result of the checks of one op.
struct OpResult {
  std::string packet;
  /// The file of the first sample: "view".
  std::string file;
  int64_t samples = 0;
  /// Strategies proven on one mesh dim, as text; those that cut a tensor
  /// apart.
  std::set<std::string> strategies;
  std::set<std::string> cutting;
  /// The dispatch check saw cut inputs give a cut or pending output without
  /// gathering.
  bool dispatched_cut = false;
  /// The dispatch check saw it refuse whatever it was given.
  bool refuses = false;
  int64_t dispatched = 0;
  int64_t refused = 0;
  /// Cases of the leaf check.
  int64_t leaves_right = 0;
  int64_t leaves_refused = 0;
  /// Mixes of placements of the operand check.
  int64_t operands_right = 0;
  int64_t operands_refused = 0;
  /// Valid strategies that the rule does not know.
  std::set<std::string> lacking;
};

/// "add_" of add_.Tensor: what PyTorch calls a packet.
inline std::string without_overload(const std::string& name) {
  return name.substr(0, name.find('.'));
}

/// The results of part D's programs with a view op or a placement.
struct ChainCounts {
  int64_t right = 0;
  int64_t refused = 0;
};

struct Report {
  std::vector<Failure> failures;
  /// By "add.Tensor".
  std::map<std::string, OpResult> ops;
  /// By part.
  std::map<std::string, int64_t> cases;
  /// How often part D's programs were refused, by how the error begins.
  std::map<std::string, int64_t> refusals;
  /// By name of the view op, "base [S(0)]" or "in a graph".
  std::map<std::string, ChainCounts> chains;
  int64_t samples = 0;
  /// Packets that have a rule, but no kernel that a CPU can run.
  std::set<std::string> other_devices;

  void fail(Failure failure) { failures.push_back(std::move(failure)); }
  /// Failures of one op, to stop after a few.
  int64_t failures_of(const std::string& part, const std::string& op) const {
    int64_t n = 0;
    for (const auto& failure : failures) {
      n += failure.part == part && failure.op == op;
    }
    return n;
  }
};

} // namespace weft::dtensor::check
