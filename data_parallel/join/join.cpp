#include "data_parallel/join/join.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <torch/torch.h>

#include "data_parallel/join/join_state.h"
#include "mesh/error/error.h"

namespace weft::data_parallel {

Joinable::~Joinable() = default;

Join::Join(
    std::vector<Joinable*> joinables,
    JoinOptions options,
    JoinKwargs kwargs) {
  WEFT_CHECK(
      !joinables.empty(),
      "join",
      mesh::ErrorContext{"Join"},
      "there are no joinables. Pass at least one, e.g. the model that "
      "DistributedDataParallel wraps.");
  for (size_t i = 0; i < joinables.size(); ++i) {
    WEFT_CHECK(
        joinables[i] != nullptr,
        "join",
        mesh::ErrorContext{"Join"},
        "joinable ",
        i,
        " is null.");
    WEFT_CHECK(
        std::count(joinables.begin(), joinables.end(), joinables[i]) == 1,
        "join",
        mesh::ErrorContext{"Join"},
        "joinable ",
        i,
        " was given twice. Pass each joinable once.");
  }
  mesh::DeviceMesh row;
  for (const auto* each : joinables) {
    row = row.ndim() == 0 ? each->join_model_parallel_mesh() : row;
  }
  const auto& first = *joinables.front();
  auto group = first.join_process_group();
  const auto device = first.join_device();
  state_ = std::make_unique<State>(State{
      .joinables = std::move(joinables),
      .options = options,
      .kwargs = std::move(kwargs),
      .group = std::move(group),
      .row = std::move(row),
      .device = device});
  state_->check_joinables();
}

Join::~Join() = default;

void Join::run(const std::function<void()>& body) {
  auto& state = *state_;
  WEFT_CHECK(
      !std::exchange(state.has_run, true),
      "join",
      state.where(),
      "a Join can run only once. Create one for each epoch.");
  state.check_free();
  const auto end = c10::make_scope_exit([&] { state.leave(); });
  state.enter(*this);
  if (!state.options.enable) {
    body();
    return;
  }
  try {
    body();
  } catch (const ModelParallelExit&) {
  } catch (const EarlyTerminationError&) {
    throw;
  } catch (const JoinError&) {
    throw;
  } catch (const mesh::CommError&) {
    state.abort();
    throw;
  } catch (...) {
    state.fail(std::current_exception());
    throw;
  }
  try {
    state.rethrow_if_ended();
    state.shadow();
  } catch (const mesh::CommError&) {
    state.abort();
    throw;
  }
}

int64_t Join::active_ranks() {
  return state_->read_header();
}

void Join::check_model_parallel_mesh() {
  auto& state = *state_;
  if (state.has_model_parallel_exit) {
    throw ModelParallelExit();
  }
  const auto row = state.vote(ModelParallelVote::kActive);
  if (row == ModelParallelVote::kActive) {
    return;
  }
  state.has_model_parallel_exit = true;
  if (row == ModelParallelVote::kOutOfInputs) {
    throw ModelParallelExit();
  }
  state.fail_with_model_parallel_mesh();
}

std::optional<mesh::Work> Join::notify_join_context_async(Joinable& joinable) {
  if (!joinable.join_config_.enable ||
      !joinable.join_config_.is_first_joinable) {
    return std::nullopt;
  }
  auto& state = *joinable.join_->state_;
  ++state.iterations;
  state.send_header(true, false);
  const auto work = state.header_work;
  if (state.options.throw_on_early_termination &&
      state.read_header() < state.group.size()) {
    state.throw_early(true);
  }
  return work;
}

std::optional<mesh::Work> Join::notify_join_context(Joinable& joinable) {
  if (joinable.join_config_.enable && joinable.join_config_.is_first_joinable) {
    joinable.join_->check_model_parallel_mesh();
  }
  auto work = notify_join_context_async(joinable);
  if (work) {
    joinable.join_->active_ranks();
  }
  return work;
}

bool read_bool(const JoinKwargs& kwargs, const char* key, bool otherwise) {
  const auto found = kwargs.find(key);
  if (found == kwargs.end()) {
    return otherwise;
  }
  WEFT_CHECK(
      found->second.isBool(),
      "join",
      mesh::ErrorContext{"Join"},
      key,
      " must be true or false: ",
      found->second.tagKind(),
      " given.");
  return found->second.toBool();
}

} // namespace weft::data_parallel
