#pragma once

#include "models/registry.h"

namespace weft::recipes::cli {

/// All of the program `weft`, which may train `models` beside Weft's own: what
/// main() returns, and a run's exit code.
int main(int argc, char** argv, ModelTypes models = {});

} // namespace weft::recipes::cli
