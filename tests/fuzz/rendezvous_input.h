#pragma once

#include <string>
#include <string_view>

namespace weft::launcher {

// Each does with an input what somebody might do, and returns what happens to
// it that must not be; empty: nothing.

/// Sends the gate of host 0 what the first byte says to make of the others, as
/// somebody without the token.
std::string knock_at_gate(std::string_view input);

/// Puts bytes into a connection that was let in, as somebody in between who
/// does not know its key.
std::string interfere(std::string_view input);

/// Sends host 0 lines as messages of a host that has the token; after a line
/// "join" of its own, which is a good one.
std::string tell_host0(std::string_view input);

/// Sends another host lines as messages of host 0.
std::string tell_other_host(std::string_view input);

} // namespace weft::launcher
