#pragma once

namespace weft::mesh {

// What is written beside the rings of the notice board: why somebody asks.

/// A thread waits for long.
inline constexpr const char* kStalled = "stalled";
/// Nobody asks: the user has been told of ranks that wait for long.
inline constexpr const char* kWarned = "warned";
/// A collective has failed.
inline constexpr const char* kFailed = "failed";
/// Nobody asks: a verdict is on the board.
inline constexpr const char* kDiagnosisPublished = "verdict";
/// Of the ranks named after it: what do your threads do?
inline constexpr const char* kStacks = "stacks";
/// Nobody asks: a rank wakes its own listener, which may end.
inline constexpr const char* kShutdown = "bye";

} // namespace weft::mesh
