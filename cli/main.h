#pragma once

#include "models/registry.h"

namespace weft::recipes::cli {

/// Runs the program `weft`, which can train `models` in addition to Weft's own.
/// Returns the exit code for main().
int main(int argc, char** argv, ModelTypes models = {});

} // namespace weft::recipes::cli
