#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/scopes/scopes.h"
#include "dtensor/spec/spec.h"
#include "mesh/communicator/collective_observer.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::dtensor {

/// One collective recorded by a CommDebugMode.
struct CommRecord {
  /// The Communicator method's name, e.g. "all_gather".
  std::string op;
  /// The name of the mesh dim, or the group's name ("tp" of "tp/1") if no mesh
  /// was given.
  std::string mesh_dim;
  /// The number of ranks of the group.
  int64_t ranks = 0;
  /// The bytes of this rank's larger side (input or output), as in the flight
  /// recorder.
  int64_t bytes = 0;
  /// The shape of the tensor that the flight recorder names: the input, for
  /// reduce_scatter_uneven the output, for all_to_all and coalesced calls the
  /// number of elements.
  std::vector<int64_t> shape;
  /// The dtype of that tensor.
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// The name in the flight recorder: a parameter or an op.
  std::string name;
  /// The module that caused it. Empty if unknown.
  std::string module;
  /// True if a backward pass launched it.
  bool is_backward = false;
  /// True if an op redistributed its input without being asked to.
  bool is_implicit = false;

  /// The redistribution that it is a step of: "[4, 8] Float", and the
  /// placements. Empty if it is none.
  std::string tensor;
  /// The placements before the redistribution.
  std::string from;
  /// The placements after the redistribution.
  std::string to;
  /// A placement of the tensor that would cost less, and the difference.
  std::string cheaper;
};

/// The options of a CommDebugMode.
struct CommDebugOptions {
  /// The mesh whose dim names are recorded. Without it the names of groups are.
  std::optional<mesh::DeviceMesh> mesh = std::nullopt;
  /// The module whose submodules' names are recorded: those called through
  /// dtensor::call(), and libtorch's modules with parameters.
  torch::nn::Module* module = nullptr;
  /// Computes CommRecord::cheaper, which takes one or two plans per op.
  bool find_cheaper = false;
};

/// Scope that records the collectives launched by this thread and by backward
/// passes started in it. Scopes nest, and each records.
/// Source: torch/distributed/tensor/debug/_comm_mode.py, CommDebugMode.
class CommDebugMode {
 public:
  /// Starts recording. The destructor ends it.
  explicit CommDebugMode(const CommDebugOptions& options = {});
  CommDebugMode(const CommDebugMode&) = delete;
  CommDebugMode& operator=(const CommDebugMode&) = delete;
  ~CommDebugMode();

  /// Returns the number of collectives by kind, e.g. {"all_gather": 4}.
  std::map<std::string, int64_t> get_comm_counts() const;
  /// Returns the number of all collectives.
  int64_t get_total_counts() const;
  /// Returns the collectives in the order of their launch.
  std::vector<CommRecord> records() const;
  /// Formats a table of the collectives by module. A line has the kind, the
  /// mesh dim, forward or backward, whether the redistribution was implicit or
  /// explicit, the number of collectives and their bytes. The last line has the
  /// total number.
  std::string generate_comm_debug_tracing_table() const;
  /// Returns {"total": n, "counts": {..}, "collectives": [..]} as one line.
  std::string generate_json_dump() const;

 private:
  struct Recorder;
  std::shared_ptr<Recorder> recorder_;
  std::unique_ptr<mesh::CollectiveObserverGuard> observe_;
  std::unique_ptr<detail::RedistributeObserverGuard> watch_;
};

namespace detail {

struct CommContext;

/// Scope in which collectives are recorded as steps of a redistribution.
/// Without a CommDebugMode it only reads a thread-local pointer.
class RedistributeScope {
 public:
  RedistributeScope(
      const at::Tensor& tensor,
      const DTensorSpec& from,
      const DTensorSpec& to,
      bool is_implicit,
      std::string_view cheaper = {});
  RedistributeScope(const RedistributeScope&) = delete;
  RedistributeScope& operator=(const RedistributeScope&) = delete;
  ~RedistributeScope();

 private:
  CommContext* context_;
};

/// Returns true if an active CommDebugMode computes CommRecord::cheaper.
bool is_finding_cheaper();

/// Returns the module whose call is running, if a CommDebugMode knows it.
/// Otherwise empty.
std::string current_module();

/// Scope in which collectives are attributed to `module`. An empty name has no
/// effect.
class ModuleScope {
 public:
  explicit ModuleScope(const std::string& module);
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;
  ~ModuleScope();

 private:
  CommContext* context_ = nullptr;
};

} // namespace detail
} // namespace weft::dtensor
