#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data_parallel/join/join.h"
#include "mesh/device_mesh.h"
#include "mesh/error/error.h"

namespace weft::data_parallel {

/// The vote of a rank in its model-parallel group. The largest value wins.
enum class ModelParallelVote : int64_t { kActive, kOutOfInputs, kFailed };

/// Thrown to end the body of a rank whose model-parallel group has no inputs
/// left. Not a std::exception, which a body may catch.
struct ModelParallelExit {};

/// The state of one rank in a Join. See Note [Join].
struct Join::State {
  std::vector<Joinable*> joinables;
  JoinOptions options;
  JoinKwargs kwargs;
  mesh::Communicator group;
  mesh::DeviceMesh row;
  c10::Device device;
  std::vector<std::shared_ptr<JoinHook>> hooks = {};
  bool has_run = false;
  bool has_model_parallel_exit = false;
  /// The exception thrown on all ranks. A body may have caught it.
  std::exception_ptr ended_by = {};
  /// The number of iterations that this rank began with inputs.
  int64_t iterations = 0;
  /// Shape [2]. See kActiveRanks.
  at::Tensor header = {};
  std::optional<mesh::Work> header_work = {};

  mesh::ErrorContext where() const {
    return {mesh::detail::concat(
        "rank ",
        group.rank(),
        "/",
        group.size(),
        ", group \"",
        group.name(),
        "\"")};
  }
  int64_t world_rank() const {
    return group.ranks()[static_cast<size_t>(group.rank())];
  }

  void check_joinables() const;
  void check_free() const;
  void enter(Join& join);
  void leave();
  ModelParallelVote vote(ModelParallelVote own) const;
  void send_header(bool is_active, bool is_failed);
  int64_t read_header();
  std::string tell_all(const std::string& text);
  void rethrow_if_ended() const;
  [[noreturn]] void throw_failed(const std::string& own);
  [[noreturn]] void throw_early(bool is_active);
  void fail(const std::exception_ptr& error);
  [[noreturn]] void fail_with_model_parallel_mesh();
  void abort() noexcept;
  bool is_in_iteration() const;
  void shadow();
  void end_iteration();
  void run_main_hooks(size_t first);
};

} // namespace weft::data_parallel
