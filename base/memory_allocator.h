#pragma once

#include <string>

// The C library's allocator, or the one that is loaded in its place. Needs no
// libtorch.

namespace weft::base {

/// Returns the file name of the library whose malloc() this process uses:
/// "libc.so.6", "libtcmalloc_minimal.so.4", "libjemalloc.so.2".
std::string memory_allocator();

/// Makes memory that is freed stay in the process for its next allocations, for
/// programs that free and allocate the same blocks in each training step.
/// Changes glibc's allocator, which otherwise gives blocks of 128 KiB or more
/// back to the kernel, and still does for blocks of 32 MiB or more. Does
/// nothing for other allocators. Called by cli::main().
void keep_freed_memory();

/// Takes the memory of the small blocks that libtorch allocates while it
/// registers its ops, 45 MB, from the kernel at once and in huge pages: page by
/// page that is 11,000 faults and a seventh of the processor time of a start.
/// For .preinit_array, before libtorch is initialised. Does nothing without
/// libtorch, or with an allocator other than tcmalloc.
void take_memory_for_libtorch();

/// Gives freed memory back to the kernel, which takes milliseconds. Does
/// nothing for allocators other than glibc's and tcmalloc.
void release_freed_memory();

} // namespace weft::base
