#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "launcher/options.h"
#include "launcher/rendezvous/hosts.h"

namespace weft::launcher {

// What launchers tell each other over a Link. Fields that are missing or of
// another type read as their defaults.

int int_of(const nlohmann::json& message, const char* name, int otherwise);
std::string text_of(const nlohmann::json& message, const char* name);

nlohmann::json to_message(const HostEnd& end);
HostEnd read_end(const nlohmann::json& message);
nlohmann::json to_message(const Verdict& verdict);
Verdict read_verdict(const nlohmann::json& message);

/// What must be the same on all hosts, as a digest.
std::string command_digest(const Options& options);

} // namespace weft::launcher
