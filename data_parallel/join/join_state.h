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

namespace weft::ddp {

/// What a rank says of itself in a vote of its row; the largest counts.
enum class ModelParallelVote : int64_t { kActive, kOutOfInputs, kFailed };

/// Ends the body of a rank whose row has left. No std::exception, which bodies
/// may catch.
struct ModelParallelExit {};

/// One rank's part in a Join. See Note [Join].
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
  /// What all ranks have thrown; bodies may have caught it.
  std::exception_ptr ended_by = {};
  /// Iterations that this rank began with inputs.
  int64_t iterations = 0;
  /// Shape [2]: see kActiveRanks.
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

} // namespace weft::ddp
