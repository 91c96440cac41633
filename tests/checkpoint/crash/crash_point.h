#pragma once

#include <string>

#include "tests/checkpoint/crash/crash_rank.h"

namespace weft::test {

/// A fault in step 3 of a CrashRun. Without `call` nothing goes wrong; without
/// `fault`, either, but the calls of `rank` are listed.
struct CrashPoint {
  CrashRun run;
  int rank = 0;
  /// The system call. Empty if strace is not needed.
  std::string call = {};
  /// "signal=KILL:when=3", "error=ENOSPC:when=1", ...
  std::string fault = {};
};

/// Every call that the saving of a checkpoint may make of files.
extern const char* const kFileCalls;

/// Runs it in `scratch`, which is made, and judges. Returns JSON:
/// `problems`: what must not be (a lost or mixed step, ranks that disagree,
/// that hang, that say nothing of rank, path and reason, leftovers);
/// `outcome`: "saved", "refused" or, where a rank was killed, "killed";
/// `ranks`: what each told, `found`: see check_after_crash();
/// `calls`: those on the checkpoints' folder, if they are listed.
/// Throws: StraceMissing.
std::string run_crash_point(
    const CrashPoint& point,
    const std::filesystem::path& scratch);

} // namespace weft::test
