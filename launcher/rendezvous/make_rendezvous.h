#pragma once

#include <memory>
#include <string>

#include "launcher/options/options.h"
#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// This launcher's part in the run that the options describe: alone, the one
/// that the others meet at (host 0), or one of those others.
/// Throws: LaunchError if it cannot be any.
std::unique_ptr<Rendezvous> make_rendezvous(
    const Options& options,
    const std::string& host_name,
    LogLine log_line);

} // namespace weft::launcher
