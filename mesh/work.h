#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mesh/backend.h"
#include "mesh/communicator.h"
#include "mesh/error.h"
#include "mesh/ledger.h"

namespace weft::mesh {

/// What all copies of a Communicator and their Works share.
struct GroupState {
  std::shared_ptr<Backend> backend;
  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>();

  /// Why the group can no longer be used; empty while it can.
  std::string failure() const;
  /// Keeps the first reason and hangs up, so that peers learn of it soon.
  void fail(const std::string& reason);

  /// "rank 1/4, group "tp/0", tensor "wq" [2, 3]".
  ErrorContext describe(const LedgerEntry& call) const;
  [[noreturn]] void throw_failure(
      const LedgerEntry& call,
      const std::string& reason) const;

 private:
  mutable std::mutex mutex_;
  std::string failure_;
};

/// Throws: CommError if the group has failed, now also on its device.
void check_usable(GroupState& group, const LedgerEntry& call);

using Start = std::function<std::unique_ptr<Pending>(Backend&)>;

/// Enters `call` into the ledger, starts it, and has Work::wait() run `finish`
/// once it is over. A group of one leaves no entry.
Work launch(
    const std::shared_ptr<GroupState>& group,
    LedgerEntry call,
    const Start& start,
    std::function<void()> finish = {});

/// One Work for several.
Work combine(std::vector<Work> works);

struct Communicator::State : GroupState {};

} // namespace weft::mesh
