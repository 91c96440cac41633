#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "tests/checkpoint/crash/crash_point.h"

namespace weft::test {

/// Adds `problems` to what run_crash_point() has seen, and returns the outcome.
std::string judge(const CrashPoint& point, nlohmann::ordered_json& result);

} // namespace weft::test
