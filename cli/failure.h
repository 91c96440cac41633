#pragma once

#include <string>

#include "mesh/error/error.h"

namespace weft::recipes::cli {

/// Writes the last line of a failed run, "ERROR <code> rank=<r> op=<op>
/// <sentence>", to stderr and returns the exit code. What ranks that
/// train end with together (kNonFinite, kPreempted), rank 0 alone says.
int report_failure(
    const std::string& op,
    mesh::ExitCode code,
    const std::string& sentence);

/// The same for the exception being handled: see mesh::ExitCode.
int report_exception(const std::string& op);

} // namespace weft::recipes::cli
