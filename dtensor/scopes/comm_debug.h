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

/// One collective that a CommDebugMode saw.
struct CommRecord {
  /// The Communicator method's name, e.g. "all_gather".
  std::string op;
  /// The mesh dim's name; the group's ("tp" of "tp/1") where no mesh was given.
  std::string mesh_dim;
  int64_t ranks = 0;
  /// Of this rank's larger side (input or output), as in the ledger.
  int64_t bytes = 0;
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// What the ledger calls it: a parameter's or an op's name.
  std::string name;
  /// The module that it is for; empty if that is not known.
  std::string module;
  /// It was launched by a backward pass.
  bool is_backward = false;
  /// An op moved its input; nobody asked for it.
  bool is_implicit = false;

  /// Of the redistribution that it is a step of; empty if of none.
  /// "[4, 8] Float".
  std::string tensor;
  std::string from;
  std::string to;
  /// A placement that the tensor could have had for less, and how much less.
  std::string cheaper;
};

struct CommDebugOptions {
  /// Names its dims in the records; else groups' names do.
  std::optional<mesh::DeviceMesh> mesh = std::nullopt;
  /// Named in the records: those of its modules that are called through
  /// dtensor::call() or the modules of libtorch that have parameters.
  torch::nn::Module* module = nullptr;
  /// Looks for CommRecord::cheaper, which takes a plan or two an op.
  bool find_cheaper = false;
};

/// While one lives, records the collectives that this thread launches, and the
/// backward passes started in it. Scopes nest; each records.
/// Source: torch/distributed/tensor/debug/_comm_mode.py, CommDebugMode.
class CommDebugMode {
 public:
  explicit CommDebugMode(const CommDebugOptions& options = {});
  CommDebugMode(const CommDebugMode&) = delete;
  CommDebugMode& operator=(const CommDebugMode&) = delete;
  ~CommDebugMode();

  /// Collectives by kind, e.g. {"all_gather": 4}.
  std::map<std::string, int64_t> get_comm_counts() const;
  int64_t get_total_counts() const;
  /// In the order of their launch.
  std::vector<CommRecord> records() const;
  /// One line for each kind, mesh dim, module, direction and whether it was
  /// asked for, with counts and bytes.
  std::string generate_comm_debug_tracing_table() const;
  /// {"total": n, "counts": {..}, "collectives": [..]}, one line.
  std::string generate_json_dump() const;

 private:
  struct Recorder;
  std::shared_ptr<Recorder> recorder_;
  std::unique_ptr<mesh::CollectiveObserverGuard> observe_;
  std::unique_ptr<detail::RedistributeObserverGuard> watch_;
};

namespace detail {

struct CommContext;

/// What a redistribution is of: while one lives, collectives are its steps.
/// Costs a look at a thread-local pointer where no CommDebugMode is open.
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

/// Whether one that is open looks for CommRecord::cheaper.
bool is_finding_cheaper();

/// The module whose call this is, where a CommDebugMode knows; else empty.
std::string current_module();

/// While one lives, collectives are for `module`; nothing if that is empty.
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
