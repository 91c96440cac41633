#pragma once

#include <string>

#include "base/error_report.h"
#include "mesh/error/error.h"

namespace weft::cli {

/// Writes the last line of a failed run, "ERROR <code> rank=<r> op=<op>
/// <sentence>", to stderr and the error file, with `cause`, for the launcher.
/// Returns the exit code. For errors on which all
/// ranks agree (kNonFinite, kPreempted) only rank 0 writes it.
int report_failure(
    const std::string& op,
    mesh::ExitCode code,
    const std::string& sentence,
    base::ErrorCause cause = base::ErrorCause::kOther);

/// Reports the exception that is being handled. See mesh::ExitCode.
int report_exception(const std::string& op);

} // namespace weft::cli
