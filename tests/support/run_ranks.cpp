#include "tests/support/run_ranks.h"

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
  const auto rank_body = [&body](RankContext& context) {
    SCOPED_TRACE("rank " + std::to_string(context.rank));
    body(context);
    if (::testing::Test::HasFatalFailure()) {
      throw FatalFailure();
    }
  };
  try {
    testkit::run_ranks(n, rank_body, options);
  } catch (const testkit::RankError& error) {
    if (!is_reported(error.cause())) {
      ADD_FAILURE() << error.what();
    }
  }
}

} // namespace weft::test
