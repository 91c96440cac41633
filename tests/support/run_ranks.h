#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "testkit/run_ranks.h"

namespace weft::test {

using testkit::RankContext;

/// testkit::run_ranks() for googletest: an exception or a fatal assertion on
/// one rank fails the test and ends the others' collectives.
void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(30),
    const std::string& backend = "cpu");
/// With other options, too.
void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    const mesh::WorldOptions& options);

} // namespace weft::test
