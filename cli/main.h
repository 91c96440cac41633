#pragma once

#include "models/registry.h"

namespace weft::cli {

/// Runs the program `weft`, which can train `models` in addition to Weft's own.
/// Returns the exit code for main().
int main(int argc, char** argv, config::ModelTypes models = {});

} // namespace weft::cli
