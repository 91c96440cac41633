#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::mesh {

/// The stacks of all threads of this process but the calling one, which waits
/// for them half a second at most. Threads that are in Weft's functions come
/// first, threads with the same stack stand together:
///
///   thread 812 (weft), sleeps
///     #0 poll in libc.so.6
///     #1 weft::mesh::ShmDoorbell::wait(...) in weft
///   threads 813 (weft), 814 (weft), sleep
///     ...
///
/// Past `max_bytes` the rest is left out, and said so. A thread that blocks
/// signals, or does not hear one (state D), is named without a stack. Not to be
/// called in a signal handler.
std::string thread_stacks(size_t max_bytes = 64 * 1024);

/// From now on SIGUSR2 makes this process write its threads' stacks and its
/// newest collective to standard error, each stack headed by rank=<r>; the
/// run goes on. The handler only wakes a thread, which is started here. Signals
/// that come while it writes become one more report. Replaces an earlier
/// handler; later calls only change the rank. A child of fork() has no reports
/// until it calls this, too.
void install_stack_signal(int64_t rank);

/// The same with the rank that the launcher says.
void install_stack_signal();

} // namespace weft::mesh
