#pragma once

// WEFT_FOR_EACH_PROCESSOR before a function compiles it for each level of
// x86-64; the program takes the widest vectors of its processor when it starts.
// (Sanitizers cannot instrument that choice; clang knows these levels
// since 18.)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WEFT_IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WEFT_IS_SANITIZED 1
#endif
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(WEFT_IS_SANITIZED) && \
    (!defined(__clang__) || __clang_major__ >= 18)
#define WEFT_FOR_EACH_PROCESSOR \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WEFT_FOR_EACH_PROCESSOR
#endif

// WEFT_IVDEP before a loop says that its iterations do not depend on each
// other: the compiler makes vectors of them without comparing their pointers.
#ifdef __clang__
#define WEFT_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define WEFT_IVDEP _Pragma("GCC ivdep")
#endif

/// Marks a function to be compiled into each of those copies.
#define WEFT_INLINE inline __attribute__((always_inline))
