#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::mesh {

/// Returns the stacks of all other threads of this process. The calling thread
/// waits for them for at most 0.5 s. Threads in Weft's functions come first,
/// and threads with the same stack are grouped under one heading, "threads 813
/// (weft), 814 (weft), sleep".
/// The text is cut at `max_bytes` and reports it. A thread that blocks signals
/// or does not react to them (state D) is listed without a stack. Not
/// async-signal-safe.
std::string thread_stacks(size_t max_bytes = size_t{64} * 1024);

/// Installs a SIGUSR2 handler that writes the stacks of all threads and the
/// newest collective to standard error, each stack with the prefix rank=<r>.
/// The process continues. The handler only wakes a thread, which this function
/// starts. Signals that arrive during a report are merged into one more report.
/// Replaces an earlier handler; later calls only change the rank. A child of
/// fork() must call it again.
void install_stack_signal(int64_t rank);

/// Like install_stack_signal(rank), with the launcher's rank.
void install_stack_signal();

} // namespace weft::mesh
