#include "tests/support/run_ranks.h"

#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace weft::test {
namespace {

/// googletest has reported already what ended this rank.
struct FatalFailure {};

bool is_reported(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const FatalFailure&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// Runs `body` on `ranks` and reports to googletest what fails.
void run_and_report(
    testkit::Ranks& ranks,
    const std::function<void(RankContext&)>& body) {
  try {
    ranks.run([&body](RankContext& context) {
      SCOPED_TRACE("rank " + std::to_string(context.rank));
      body(context);
      if (::testing::Test::HasFatalFailure()) {
        throw FatalFailure();
      }
    });
  } catch (const testkit::RankError& error) {
    if (!is_reported(error.cause())) {
      ADD_FAILURE() << error.what();
    }
  }
}

} // namespace

void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    std::chrono::milliseconds timeout,
    const std::string& backend) {
  mesh::WorldOptions options;
  options.timeout = timeout;
  options.backend = backend;
  run_ranks(n, body, options);
}

void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    const mesh::WorldOptions& options) {
  testkit::Ranks ranks(n, options);
  run_and_report(ranks, body);
}

struct SharedRanks::State {
  State(int64_t dp, int64_t tp)
      : dp(dp), tp(tp), ranks(static_cast<int>(dp * tp)), meshes(dp * tp) {}

  const int64_t dp;
  const int64_t tp;
  testkit::Ranks ranks;
  std::vector<std::optional<mesh::DeviceMesh>> meshes; // of each rank
};

SharedRanks::SharedRanks() = default;
SharedRanks::~SharedRanks() = default;

void SharedRanks::clear() {
  state_.reset();
}

void SharedRanks::run(
    int64_t dp,
    int64_t tp,
    const std::function<void(RankContext&, const mesh::DeviceMesh&)>& body) {
  if (!state_ || state_->dp != dp || state_->tp != tp) {
    clear();
    state_ = std::make_unique<State>(dp, tp);
  }
  run_and_report(state_->ranks, [&](RankContext& context) {
    auto& mesh = state_->meshes.at(context.rank);
    if (!mesh) {
      mesh = context.mesh({dp, tp}, {"dp", "tp"});
    }
    body(context, *mesh);
  });
  if (::testing::Test::HasFailure()) {
    clear();
  }
}

} // namespace weft::test
