#include "checkpoint/save/saver.h"

#include <atomic>
#include <exception>
#include <future>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/save/collective_save.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/save/staging.h"
#include "checkpoint/save/state_items.h"
#include "checkpoint/store/store.h"
#include "mesh/communicator/caller.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"

// Note [Saving in the background]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The caller's thread plans the save and copies the tensors. A background
// thread writes and commits. The background thread talks to the other ranks
// through its own groups (RankTree), so that its messages do not mix with the
// collectives of training. Weft does not fork a process for this, because a
// child of a process with threads and devices can do little safely.

namespace weft::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kSaveOp = "checkpoint.save";

bool is_same(const SaveItem& a, const SaveItem& b) {
  return a.key == b.key && a.spec == b.spec && a.sizes == b.sizes &&
         a.item_bytes == b.item_bytes;
}

// Returns the part of the tensor that this rank writes. It is a view unless the
// tensor has a lazy conjugation or negation.
at::Tensor held_part(const StateItem& item, const HeldShard& held) {
  auto part = item.local;
  for (size_t d = 0; d < held.at.size(); ++d) {
    part = part.narrow(static_cast<int64_t>(d), held.at[d], held.box.sizes[d]);
  }
  return part.resolve_conj().resolve_neg();
}

class PlanCache {
 public:
  /// Returns true if the last plan was reused.
  bool update(
      const std::vector<StateItem>& items,
      const std::optional<mesh::World>& world) {
    bool same = plan_.has_value() && plan_->items().size() == items.size();
    for (size_t i = 0; same && i < items.size(); ++i) {
      same = is_same(plan_->items()[i], items[i].item);
    }
    if (same) {
      return true;
    }
    std::vector<SaveItem> all;
    for (const auto& item : items) {
      all.push_back(item.item);
    }
    plan_.emplace(std::move(all), world ? world->world_size() : 1);
    chunks_ = plan_->chunks_of(rank_of(world));
    return false;
  }

  const std::vector<PlannedChunk>& chunks() const { return chunks_; }

 private:
  std::optional<SavePlan> plan_;
  std::vector<PlannedChunk> chunks_;
};

// Groups the chunks by file. data[i] is the content of chunk i.
std::vector<std::vector<FileTensor>> to_files(
    const std::vector<PlannedChunk>& chunks,
    const std::vector<StateItem>& items,
    std::vector<at::Tensor> data) {
  std::vector<std::vector<FileTensor>> files;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto part = static_cast<size_t>(chunks[i].part);
    if (files.size() <= part) {
      files.resize(part + 1);
    }
    const auto& item = items[chunks[i].item].item;
    files[part].push_back(
        {.key = item.key,
         .offset = chunks[i].held.box.offset,
         .global_shape = item.sizes,
         .data = std::move(data[i])});
  }
  return files;
}

} // namespace

struct Saver::State {
  std::filesystem::path checkpoints;
  SaverOptions options;
  std::optional<mesh::RankTree> tree;
  std::optional<mesh::RankTree> background_tree;
  std::string nonce;
  int64_t saves = 0;
  PlanCache plan;
  Staging staging;
  std::future<void> reserving;
  SaveStats last;
  std::future<SaveStats> in_flight;
  /// True lifts the write rate limit of the save in flight.
  std::atomic<bool> is_unthrottled = false;

  std::vector<at::Tensor> parts_to_write(
      const std::vector<StateItem>& items) const {
    std::vector<at::Tensor> parts;
    for (const auto& chunk : plan.chunks()) {
      parts.push_back(held_part(items[chunk.item], chunk.held));
    }
    return parts;
  }

  // Waits for the reservation. Ignores its error, because the copy allocates
  // again.
  void wait_for_memory() {
    if (reserving.valid()) {
      reserving.wait();
      reserving = {};
    }
  }

  // Waits for the save in flight and returns its error. Does not throw it,
  // because ranks learn of a failure in different calls, and a rank that threw
  // here would be missing in the next save.
  std::exception_ptr settle() {
    try {
      if (in_flight.valid()) {
        last = in_flight.get();
      }
      return nullptr;
    } catch (const SaveError&) {
      return std::current_exception();
    } catch (const mesh::DisagreementError&) {
      return std::current_exception();
    }
  }

  void make_background_tree() {
    if (tree && !background_tree) {
      background_tree.emplace(*options.world);
    }
  }

  // Returns the tensors to write, in their own memory or, if `copies`, in the
  // staging buffer.
  CollectiveSave prepare(
      const StateDicts& dicts,
      const StepContent& content,
      bool copies,
      SaveStats& stats) {
    CollectiveSave save{
        .checkpoints = checkpoints,
        .content = content,
        .options = options,
        .nonce = fmt::format("{}-{}", nonce, saves++),
        .items = list_items(dicts, kSaveOp),
        .files = {}};
    // From here on the other ranks wait for the report of this rank, so an
    // error becomes part of it.
    try {
      add_files(save, copies, stats);
    } catch (const std::exception& error) {
      save.error = mesh::message_of(error);
    }
    if (copies) { // releases the tensors of the state
      for (auto& item : save.items) {
        item.local = at::Tensor();
        item.whole = at::Tensor();
      }
    }
    return save;
  }

  void add_files(CollectiveSave& save, bool copies, SaveStats& stats) {
    stats.plan_was_cached = plan.update(save.items, options.world);
    auto data = parts_to_write(save.items);
    for (const auto& part : data) {
      stats.bytes += static_cast<int64_t>(part.nbytes());
    }
    if (copies) {
      wait_for_memory();
      data = staging.copy(data);
      stats.staging_bytes = staging.bytes();
    } else {
      for (auto& tensor : data) {
        tensor = tensor.cpu().contiguous();
      }
    }
    save.files = to_files(plan.chunks(), save.items, std::move(data));
  }
};

Saver::Saver(std::filesystem::path checkpoints, SaverOptions options)
    : state_(std::make_unique<State>()) {
  state_->checkpoints = std::move(checkpoints);
  state_->options = std::move(options);
  if (state_->options.world) {
    state_->tree = mesh::RankTree::shared(*state_->options.world);
  }
  state_->nonce = agree_on_nonce(state_->tree);
}

Saver::~Saver() {
  if (state_->reserving.valid()) {
    state_->reserving.wait();
  }
  if (state_->in_flight.valid()) {
    state_->in_flight.wait();
  }
}

std::filesystem::path Saver::save(
    const StateDicts& dicts,
    const StepContent& content) {
  const auto earlier = state_->settle();
  const auto start = Clock::now();
  SaveStats stats;
  auto joint = state_->prepare(dicts, content, /*copies=*/false, stats);
  joint.options.bytes_per_second = 0;
  stats.note = save_collectively(joint, state_->tree);
  stats.blocked = stats.total = Clock::now() - start;
  state_->last = stats;
  if (earlier) {
    std::rethrow_exception(earlier);
  }
  return step_path(state_->checkpoints, content.step);
}

void Saver::save_async(const StateDicts& dicts, const StepContent& content) {
  const auto start = Clock::now();
  const auto earlier = state_->settle();
  SaveStats stats;
  auto joint = std::make_shared<CollectiveSave>(
      state_->prepare(dicts, content, /*copies=*/true, stats));
  state_->make_background_tree();
  state_->is_unthrottled = false;
  joint->is_unthrottled = &state_->is_unthrottled;
  stats.blocked = Clock::now() - start;
  // Runs one save at a time, on another thread or, if none can be created, on
  // this one.
  const auto act = [start,
                    stats,
                    joint,
                    state = state_.get(),
                    caller = mesh::Caller::current()]() mutable {
    const mesh::CallerScope call_for(caller);
    stats.note = save_collectively(*joint, state->background_tree);
    stats.total = Clock::now() - start;
    return stats;
  };
  try {
    state_->in_flight = std::async(std::launch::async, act);
  } catch (const std::system_error&) {
    // No thread can be created. The save runs here, because the other ranks
    // wait for the report of this rank.
    state_->in_flight = std::async(std::launch::deferred, act);
    state_->in_flight.wait();
  }
  if (earlier) {
    std::rethrow_exception(earlier);
  }
}

void Saver::prepare_async(const StateDicts& dicts) {
  wait();
  state_->make_background_tree();
  state_->wait_for_memory();
  const auto items = list_items(dicts, kSaveOp);
  state_->plan.update(items, state_->options.world);
  state_->reserving = std::async(
      std::launch::async,
      [state = state_.get(), parts = state_->parts_to_write(items)] {
        state->staging.reserve(parts);
      });
}

void Saver::unthrottle() {
  state_->is_unthrottled = true;
}

bool Saver::is_in_flight() const {
  return state_->in_flight.valid() &&
         state_->in_flight.wait_for(std::chrono::seconds(0)) !=
             std::future_status::ready;
}

void Saver::check() {
  if (state_->in_flight.valid() && !is_in_flight()) {
    state_->last = state_->in_flight.get();
  }
}

void Saver::wait() {
  if (state_->in_flight.valid()) {
    state_->in_flight.wait();
    check();
  }
}

SaveStats Saver::stats() const {
  return state_->last;
}

} // namespace weft::checkpoint
