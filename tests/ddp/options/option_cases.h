#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "ddp/reducer/options.h"

namespace weft::test {

/// What one case trains, and how.
struct OptionSetup {
  std::string model = "mlp";
  at::ScalarType dtype = at::kDouble;
  ddp::DistributedDataParallelOptions options = {};
  std::function<std::shared_ptr<data_parallel::CommHook>()> hook = {};

  /// Forwards of a step. If `joint`, their losses are added up before one
  /// backward.
  int64_t micro = 1;
  bool joint = false;
  /// The step from which all but the last are under no_sync().
  std::optional<int64_t> no_sync_from = {};
  /// Gradients are zeroed instead of undefined.
  bool zero = false;
  /// True if every step has the same graph. Otherwise it depends on rank and
  /// step.
  bool fixed_graph = false;
  enum class Optimizer { kAfterBackward, kInBackward, kFused };
  Optimizer optimizer = Optimizer::kAfterBackward;
  /// Ranks start from different parameters or buffers.
  bool own_parameters = false;
  bool own_buffers = false;

  /// The tolerance of losses, parameters, gradients and buffers.
  double tolerance = 1e-10;

  int64_t kind(int64_t rank, int64_t step) const;
  /// Forward `i` of a step is under no_sync().
  bool is_paused(int64_t step, int64_t i) const;
  bool synchronizes_buffers() const;
  bool is_ignored(const std::string& name) const;
};

/// A part of a case's name.
struct OptionFeature {
  /// Which suite of options_test.cpp runs cases that begin with it.
  std::string area;
  std::string name;
  void (*change)(OptionSetup& setup);
  /// For an option of Weft's: the PyTorch code with the same effect.
  std::string like = {};
};

/// What PyTorch's DDP has too, under the names of oracle/option_cases.py.
const std::vector<OptionFeature>& features_of_pytorch();
/// What Weft's has beyond.
const std::vector<OptionFeature>& features_of_weft();

/// All cases, e.g. "find_unused_parameters+no_sync".
std::vector<std::string> option_cases();
/// Returns the cases of an area.
std::vector<std::string> option_cases(const std::string& area);

/// Throws: std::invalid_argument if a part of the name is no feature.
OptionSetup setup_of(const std::string& name);

/// The case of PyTorch's that computes the same: without Weft's features. None
/// if PyTorch has nothing like it.
std::optional<std::string> pytorch_case(const std::string& name);

} // namespace weft::test
