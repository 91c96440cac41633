#include "mesh/backends/shm/shm_group.h"

#include <algorithm>
#include <utility>

#include "base/fnv.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

std::string describe(
    ShmKind kind,
    c10::ScalarType dtype,
    uint64_t bytes,
    uint64_t sequence) {
  std::string text = name_of(kind);
  if (kind != ShmKind::kBarrier) {
    text += detail::concat(" of ", dtype, " with ", bytes, " bytes");
  }
  return text + " as call " + std::to_string(sequence);
}

} // namespace

ShmGroup::ShmGroup(
    const GroupMembers& members,
    const GroupRendezvous& rendezvous,
    const ShmDoorbell& own_doorbell)
    : members_(members),
      shape_{members.rank, static_cast<int64_t>(members.ranks.size())},
      segment_(members, rendezvous, kShmSlotBytes, own_doorbell),
      writer_(shape_.size) {}

std::shared_ptr<ShmOperation> ShmGroup::push(std::unique_ptr<ShmCall> call) {
  auto operation = std::make_shared<ShmOperation>();
  operation->rounds = std::max<uint64_t>(call->rounds(), 1);
  operation->call = std::move(call);
  operation->sequence = next_sequence_++;
  operation->deadline = std::chrono::steady_clock::now() + members_.timeout;
  if (failure_.empty()) {
    queue_.push_back(operation);
  } else {
    operation->failure = failure_;
    finish(*operation);
  }
  return operation;
}

bool ShmGroup::progress() {
  bool moved = false;
  while (!queue_.empty()) {
    auto& operation = *queue_.front();
    if (!try_write(operation) && !try_read(operation)) {
      return moved;
    }
    moved = true;
    if (operation.read == operation.rounds) {
      rounds_before_ += operation.rounds;
      update_history(*operation.call);
      finish(operation);
      queue_.pop_front();
    }
  }
  return moved;
}

void ShmGroup::update_history(const ShmCall& call) {
  for (const uint64_t part :
       {static_cast<uint64_t>(call.kind()),
        static_cast<uint64_t>(call.dtype()),
        static_cast<uint64_t>(call.detail()),
        call.identity()}) {
    history_ = base::fnv1a(history_, part);
  }
}

void ShmGroup::finish(ShmOperation& operation) {
  operation.call.reset();
  operation.done.store(true);
  if (operation.callback) {
    operation.callback();
  }
}

void ShmGroup::fail(const std::string& reason) {
  segment_.leave();
  failure_ = failure_.empty() ? reason : failure_;
  for (const auto& operation : queue_) {
    operation->failure = reason;
    finish(*operation);
  }
  queue_.clear();
}

std::string ShmGroup::peer_failure() const {
  if (queue_.empty()) {
    return {};
  }
  if (const int64_t peer = segment_.lost_rank(); peer >= 0) {
    return detail::concat(
        "connection closed by rank ",
        members_.ranks[static_cast<size_t>(peer)],
        " of the world");
  }
  const auto& operation = *queue_.front();
  return std::chrono::steady_clock::now() > operation.deadline
             ? describe_delay(operation)
             : std::string();
}

std::string ShmGroup::describe_delay(const ShmOperation& operation) const {
  const uint64_t at = rounds_before_ + operation.read;
  std::string late;
  for (int64_t peer = 0; peer < shape_.size; ++peer) {
    if (peer != shape_.rank && segment_.rank(peer).published.load() <= at) {
      late += detail::concat(
          late.empty() ? "" : ", ", members_.ranks[static_cast<size_t>(peer)]);
    }
  }
  return late.empty() ? late
                      : "timed out waiting for rank " + late + " of the world";
}

bool ShmGroup::try_write(ShmOperation& operation) {
  auto& call = *operation.call;
  const uint64_t round = operation.written;
  if (round == operation.rounds || round > operation.read + 1 ||
      (round > operation.read && !call.writes_ahead(round))) {
    return false;
  }
  const uint64_t at = rounds_before_ + round;
  for (int64_t peer = 0; peer < shape_.size; ++peer) {
    if (peer != shape_.rank &&
        segment_.rank(peer).consumed.load() + kShmSlots <= at) {
      return false;
    }
  }
  segment_.header(shape_.rank, at) = {
      operation.sequence,
      static_cast<uint32_t>(call.kind()),
      static_cast<uint32_t>(call.dtype()),
      call.detail(),
      call.identity(),
      operation.rounds,
      history_};
  uint64_t* const bytes = segment_.bytes_for(shape_.rank, at);
  for (int64_t peer = 0; peer < shape_.size; ++peer) {
    bytes[peer] = call.bytes_for(peer);
  }
  call.write(round, segment_.slot(shape_.rank, at), writer_);
  ++operation.written;
  segment_.own().published.store(at + 1);
  segment_.ring_others();
  return true;
}

bool ShmGroup::try_read(ShmOperation& operation) {
  auto& call = *operation.call;
  const uint64_t at = rounds_before_ + operation.read;
  const auto is_read = [&](int64_t peer) {
    return peer != shape_.rank && call.reads(peer);
  };
  if (operation.read == operation.written) {
    return false;
  }
  for (int64_t peer = 0; peer < shape_.size; ++peer) {
    if (is_read(peer) && segment_.rank(peer).published.load() <= at) {
      return false;
    }
  }
  for (int64_t peer = 0; peer < shape_.size; ++peer) {
    if (is_read(peer)) {
      check(operation, peer, at);
      operation.rounds =
          std::max(operation.rounds, segment_.header(peer, at).rounds);
    }
  }
  call.read(operation.read, segment_, at);
  ++operation.read;
  segment_.own().consumed.store(at + 1);
  segment_.ring_others();
  return true;
}

// Throws CommError if `peer` called another collective than this rank. The
// group then fails, because later calls cannot be matched.
void ShmGroup::check(const ShmOperation& operation, int64_t peer, uint64_t at)
    const {
  const auto& call = *operation.call;
  const auto& theirs = segment_.header(peer, at);
  const uint64_t sent = segment_.bytes_for(peer, at)[shape_.rank];
  if (theirs.history != history_) {
    throw_error<CommError>(detail::concat(
        "Ranks called different collectives before call ",
        operation.sequence,
        ": rank ",
        members_.ranks[static_cast<size_t>(peer)],
        " called other collectives than this rank, for example a broadcast "
        "with another root"));
  }
  if (theirs.sequence == operation.sequence &&
      theirs.kind == static_cast<uint32_t>(call.kind()) &&
      theirs.dtype == static_cast<uint32_t>(call.dtype()) &&
      theirs.detail == call.detail() && sent == call.bytes_from(peer) &&
      theirs.identity == call.identity()) {
    return;
  }
  throw_error<CommError>(detail::concat(
      "Ranks called different collectives: this rank called ",
      describe(
          call.kind(), call.dtype(), call.bytes_from(peer), operation.sequence),
      " vs rank ",
      members_.ranks[static_cast<size_t>(peer)],
      " ",
      describe(
          static_cast<ShmKind>(theirs.kind),
          static_cast<c10::ScalarType>(theirs.dtype),
          sent,
          theirs.sequence),
      theirs.detail == call.detail() ? "" : " with another root or reduction",
      theirs.identity == call.identity() ? "" : " or another name or shape"));
}

} // namespace weft::mesh
