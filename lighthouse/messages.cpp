#include "lighthouse/messages.h"

#include <algorithm>

#include "base/fnv.h"

namespace weft::lighthouse {
namespace {

uint64_t hash_of(uint64_t parent, const EpochNumber& epoch, int64_t step) {
  uint64_t hash = base::kFnvBasis;
  for (const uint64_t part :
       {parent, epoch.ballot, epoch.count, static_cast<uint64_t>(step)}) {
    hash = base::fnv1a(hash, part);
  }
  return hash == 0 ? 1 : hash;
}

} // namespace

bool Epoch::has(GroupId group) const {
  return std::ranges::find(members, group) != members.end();
}

std::string key_prefix(const EpochNumber& epoch) {
  return "epoch/" + std::to_string(epoch.ballot) + "." +
         std::to_string(epoch.count) + "/";
}

std::string ended_key(GroupId group) {
  return "ended/" + std::to_string(group);
}

Commit next_commit(const Commit& parent, const EpochNumber& epoch) {
  const int64_t step = parent.step + 1;
  return {step, hash_of(parent.id, epoch, step)};
}

Commit checkpoint_commit(int64_t step, const EpochNumber& epoch) {
  return {step, hash_of(0, epoch, step)};
}

} // namespace weft::lighthouse
