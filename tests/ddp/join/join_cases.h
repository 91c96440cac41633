#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/ddp/options/option_cases.h"

namespace weft::test {

/// By what the sum of the replicas' gradients is divided.
enum class Division { kInitial, kEffective, kSamples };

/// An OptionSetup for ranks that have different numbers of inputs; `micro` is
/// how many of them make a step.
struct JoinSetup : OptionSetup {
  /// Gradients are clipped to this norm over the mesh.
  std::optional<double> max_norm = {};
  bool finalizes_manually = false;
  /// Some parameters are reduced over pairs of replicas alone.
  bool has_experts = false;

  /// How their names begin; "" if there are none.
  std::string experts() const;
  bool is_expert(const std::string& name) const {
    return has_experts && name.starts_with(experts());
  }
};

/// A part of a case's name, beside those of option_cases.h.
struct JoinFeature {
  std::string name;
  void (*change)(JoinSetup& setup);
};

/// How a case is run.
struct JoinRun {
  std::string name;
  int64_t tp = 1;
  /// Inputs of each replica.
  std::vector<int64_t> counts;
  Division division = Division::kInitial;

  int64_t dp() const { return static_cast<int64_t>(counts.size()); }
  JoinSetup setup() const;
  /// "2x1, counts 5,3, initial: no_sync".
  std::string describe() const;
};

/// The number of rows of an input: 2 to 4.
int64_t join_rows(int64_t replica, int64_t batch);

/// Options alone and in the pairs that interact, e.g. "no_sync+static_graph".
std::vector<std::string> join_cases();
/// Throws: std::invalid_argument if a part of the name is no feature.
JoinSetup join_setup_of(const std::string& name);
/// Every case on one layout, with each division and several counts.
std::vector<JoinRun> join_runs(int64_t dp, int64_t tp);

const char* name_of(Division division);
/// Formats numbers: "5,3".
std::string join_text(
    const std::vector<int64_t>& numbers,
    const std::string& separator);

} // namespace weft::test
