#include "data_parallel/join/join_state.h"

#include <algorithm>
#include <utility>

#include <torch/torch.h>

#include "mesh/communicator/exchange.h"
#include "mesh/error/failure.h"

// Note [Join]
// ~~~~~~~~~~~
// At the start of an iteration each rank adds its entry to a header: an
// all_reduce of the number of ranks with inputs and the number of failed ranks.
// Ranks with inputs send the header and continue; they read it before the first
// collective that needs the other ranks. Ranks without inputs send headers in a
// loop. While a rank has inputs, they run the joinables' main hooks, which take
// part in the iteration's collectives. When no rank has inputs, all ranks run
// the post hooks.
//
// Ranks with the same inputs (tensor parallelism) also need the same
// collectives within the model. So before a rank uses an input, its
// model-parallel group votes. If a member has no inputs left, all members
// leave: ModelParallelExit ends the body of those that still have inputs. The
// vote is an all_reduce among the ranks that the model would wait for anyway.
//
// A body that fails between iterations reports it in the next header, and all
// ranks throw. A body or a hook that fails within an iteration leaves
// collectives half done, and no later message could match them up. The groups
// are aborted then.

namespace weft::data_parallel {
namespace {

constexpr int64_t kImbalanceToWarn = 1000;

constexpr int64_t kActiveRanks = 0;
constexpr int64_t kFailedRanks = 1;

bool is_same_group(const mesh::Communicator& a, const mesh::Communicator& b) {
  return a.name() == b.name() && a.ranks() == b.ranks();
}

} // namespace

void Join::State::check_joinables() const {
  for (const auto* each : joinables) {
    WEFT_CHECK(
        is_same_group(each->join_process_group(), group),
        "join",
        where(),
        "the joinables have different process groups: the first one's is \"",
        group.name(),
        "\" of ",
        group.size(),
        " ranks, another one's \"",
        each->join_process_group().name(),
        "\" of ",
        each->join_process_group().size(),
        ". Ranks run out of inputs in one group: make all joinables on it.");
    WEFT_CHECK(
        each->join_device() == device,
        "join",
        where(),
        "the joinables are on different devices: ",
        device,
        " and ",
        each->join_device(),
        ". Put all on one.");
    const auto& theirs = each->join_model_parallel_mesh();
    WEFT_CHECK(
        theirs.ndim() == 0 || theirs == row,
        "join",
        where(),
        "the joinables have different model-parallel meshes: ",
        row.to_string(),
        " and ",
        theirs.to_string(),
        ". Use one mesh for all.");
  }
}

void Join::State::check_free() const {
  for (const auto* each : joinables) {
    WEFT_CHECK(
        each->join_ == nullptr,
        "join",
        where(),
        "a joinable is already in a running Join; Joins cannot be nested. Give "
        "all joinables to one Join.");
  }
}

void Join::State::enter(Join& join) {
  for (size_t i = 0; i < joinables.size(); ++i) {
    joinables[i]->join_config_ = {
        .enable = options.enable,
        .throw_on_early_termination = options.throw_on_early_termination,
        .is_first_joinable = i == 0};
    joinables[i]->join_ = &join;
  }
  if (options.enable) {
    for (auto* each : joinables) {
      hooks.push_back(each->join_hook(kwargs));
    }
  }
}

void Join::State::leave() {
  for (auto* each : joinables) {
    each->join_config_ = {};
    each->join_ = nullptr;
    each->leave_join();
  }
  hooks.clear();
}

void Join::State::rethrow_if_ended() const {
  if (ended_by) {
    std::rethrow_exception(ended_by);
  }
}

ModelParallelVote Join::State::vote(ModelParallelVote own) const {
  rethrow_if_ended();
  if (row.size() <= 1) {
    return own;
  }
  const auto state =
      at::full({1}, static_cast<int64_t>(own), at::kLong).to(device);
  for (int64_t i = 0; i < row.ndim(); ++i) {
    row.group(i).all_reduce(state, mesh::ReduceOp::kMax, "join row").wait();
  }
  return state.is_meta()
             ? own
             : static_cast<ModelParallelVote>(state.item<int64_t>());
}

void Join::State::send_header(bool is_active, bool is_failed) {
  rethrow_if_ended();
  header =
      at::tensor({is_active ? 1 : 0, is_failed ? 1 : 0}, at::kLong).to(device);
  header_work = group.all_reduce(header, mesh::ReduceOp::kSum, "join header");
}

// Returns the number of ranks with inputs. Throws if a rank has failed; a rank
// that failed itself must not call it.
int64_t Join::State::read_header() {
  rethrow_if_ended();
  if (!header.defined()) {
    return group.size();
  }
  if (header_work) {
    std::exchange(header_work, std::nullopt)->wait();
    if (!header.is_meta()) {
      header = header.cpu();
    }
  }
  if (header.is_meta()) {
    return group.size();
  }
  if (header[kFailedRanks].item<int64_t>() > 0) {
    throw_failed("");
  }
  return header[kActiveRanks].item<int64_t>();
}

// Joins the texts of all ranks that have one: "rank 1 failed: ...; rank 3 ...".
std::string Join::State::tell_all(const std::string& text) {
  std::string all;
  const auto texts = mesh::all_gather_text(group, text, "join", device);
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i].empty()) {
      const auto rank = texts.size() == 1 ? world_rank() : group.ranks()[i];
      all += (all.empty() ? "rank " : "; rank ") + std::to_string(rank) + " " +
             texts[i];
    }
  }
  return all;
}

void Join::State::throw_failed(const std::string& own) {
  const auto all = tell_all(own);
  try {
    mesh::throw_error<JoinError>(mesh::detail::concat(
        "[join] ", all, ". All ranks stop. (", where().text, ")"));
  } catch (const JoinError&) {
    ended_by = std::current_exception();
    throw;
  }
}

void Join::State::throw_early(bool is_active) {
  const auto own = mesh::detail::concat(
      "ran out of inputs after ", iterations, " iterations");
  const auto all = tell_all(is_active ? "" : own);
  const auto here =
      mesh::detail::concat("; this rank is in iteration ", iterations);
  try {
    mesh::throw_error<EarlyTerminationError>(mesh::detail::concat(
        "[join] ",
        all,
        ", and throw_on_early_termination is set",
        is_active ? here : "",
        ". Give all ranks the same number of inputs, or leave the option out. "
        "(",
        where().text,
        ")"));
  } catch (const EarlyTerminationError&) {
    ended_by = std::current_exception();
    throw;
  }
}

void Join::State::abort() noexcept {
  const auto attempt = [](const auto& run) {
    try {
      run();
    } catch (...) {
      // The caller already handles an error.
    }
  };
  attempt([&] { group.abort(); });
  for (int64_t i = 0; i < row.ndim(); ++i) {
    attempt([&] { row.group(i).abort(); });
  }
  for (auto* each : joinables) {
    attempt([&] { each->abort_join(); });
  }
}

bool Join::State::is_in_iteration() const {
  return std::any_of(joinables.begin(), joinables.end(), [](const auto* each) {
    return each->is_in_join_iteration();
  });
}

// Makes the other ranks throw after this rank's body threw.
void Join::State::fail(const std::exception_ptr& error) {
  if (ended_by) {
    return;
  }
  if (is_in_iteration()) {
    abort();
    return;
  }
  try {
    if (!std::exchange(has_model_parallel_exit, true)) {
      vote(ModelParallelVote::kFailed);
    }
    send_header(false, true);
    std::exchange(header_work, std::nullopt)->wait();
    tell_all("failed: " + mesh::message_of(error));
  } catch (...) {
    // The other ranks are in a different collective, or one of them aborted the
    // group.
    abort();
  }
}

void Join::State::run_main_hooks(size_t first) {
  for (size_t i = first; i < hooks.size(); ++i) {
    try {
      hooks[i]->main_hook();
    } catch (const JoinError&) {
      throw;
    } catch (...) {
      if (hooks[i]->has_agreed_error()) {
        fail(std::current_exception());
      } else {
        abort();
      }
      throw;
    }
  }
}

// Runs the main hooks for the rest of an iteration that this rank began,
// because the other ranks wait for its collectives.
void Join::State::end_iteration() {
  for (size_t i = 0; i < joinables.size(); ++i) {
    if (joinables[i]->is_in_join_iteration()) {
      run_main_hooks(i);
      return;
    }
  }
}

void Join::State::fail_with_model_parallel_mesh() {
  if (is_in_iteration()) {
    abort();
  }
  send_header(false, true);
  std::exchange(header_work, std::nullopt)->wait();
  throw_failed(
      "stops, because another rank of its model-parallel group has failed");
}

void Join::State::shadow() {
  if (!std::exchange(has_model_parallel_exit, true) &&
      vote(ModelParallelVote::kOutOfInputs) == ModelParallelVote::kFailed) {
    fail_with_model_parallel_mesh();
  }
  end_iteration();
  bool is_last = true;
  int64_t shadowed = 0;
  for (;;) {
    send_header(false, false);
    if (header.is_meta() || read_header() == 0) {
      break;
    }
    if (options.throw_on_early_termination) {
      throw_early(false);
    }
    is_last = false;
    run_main_hooks(0);
    if (++shadowed == kImbalanceToWarn) {
      TORCH_WARN(
          "[join] rank ",
          world_rank(),
          " ran out of inputs after ",
          iterations,
          " iterations, but other ranks trained for ",
          shadowed,
          " more, while this rank only waited. Divide the inputs more evenly.");
    }
  }
  try {
    for (const auto& hook : hooks) {
      hook->post_hook(is_last);
    }
  } catch (...) {
    abort();
    throw;
  }
}

} // namespace weft::data_parallel
