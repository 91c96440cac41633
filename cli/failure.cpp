#include "cli/failure.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <thread>

#include "base/error_report.h"
#include "base/failure_line.h"
#include "base/parse_int.h"
#include "checkpoint/files/error.h"
#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/job_rank.h"
#include "mesh/error/failure.h"
#include "train/health/non_finite.h"
#include "train/stop_signal.h"

namespace weft::cli {
namespace {

int64_t rank() {
  try {
    return mesh::current_job_rank().rank;
  } catch (const mesh::UsageError&) {
    // The failure may be that RANK or a related variable is invalid.
    return base::parse_int<int64_t>(mesh::env::get("RANK").value_or(""))
        .value_or(0);
  }
}

/// Writes the error file for the launcher, which finds the first failure by the
/// time in these files.
void leave_error_file(
    mesh::ExitCode code,
    base::ErrorCause cause,
    const std::string& sentence) {
  const auto path = mesh::env::get("TORCHELASTIC_ERROR_FILE");
  if (path) {
    base::write_error_file(
        path->c_str(),
        {.code = static_cast<int>(code),
         .rank = rank(),
         .time_ns = base::error_time_ns(),
         .message = sentence,
         .cause = cause,
         .callstack = ""});
  }
}

// Waits on ranks other than 0. Every rank finds the same mistake in a recipe.
// Rank 0 reports it first, and the launcher ends the other ranks. A rank that
// alone has a mistake still reports it.
void defer_to_rank_zero() {
  if (rank() != 0) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

// Waits for a stop signal on ranks other than 0 that lost a peer. The launcher
// sends a signal to all ranks, to rank 0 first. Before the first step rank 0
// ends at once, and another rank may lose it before its own signal arrives.
// That signal then ends this process. Rank 0 has reported the reason.
void defer_to_signal(const std::string& op, mesh::ExitCode code) {
  constexpr std::chrono::milliseconds kLimit(500);
  if (op == "train" && code == mesh::ExitCode::kPeerLost && rank() != 0) {
    train::await_stop_signal(kLimit);
  }
}

/// Returns true if rank 0 reports the failure for all ranks, because all ranks
/// have agreed on it.
bool is_said_by_rank_zero(const std::string& op, mesh::ExitCode code) {
  return op == "train" && (code == mesh::ExitCode::kPreempted ||
                           code == mesh::ExitCode::kNonFinite);
}

} // namespace

int report_failure(
    const std::string& op,
    mesh::ExitCode code,
    const std::string& sentence,
    base::ErrorCause cause) {
  leave_error_file(code, cause, sentence);
  if (code == mesh::ExitCode::kUsage) {
    defer_to_rank_zero();
  }
  defer_to_signal(op, code);
  if (is_said_by_rank_zero(op, code) && rank() != 0) {
    return static_cast<int>(code);
  }
  const base::FailureLine line{
      .code = static_cast<int>(code),
      .rank = rank(),
      .op = op,
      .text = sentence};
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", line.to_string().c_str());
  std::fflush(stderr);
  return static_cast<int>(code);
}

int report_exception(const std::string& op) {
  using base::ErrorCause;
  using mesh::ExitCode;
  try {
    throw;
  } catch (const mesh::UsageError& error) {
    return report_failure(op, ExitCode::kUsage, error.what_without_backtrace());
  } catch (const train::PreemptedError& error) {
    return report_failure(
        op, ExitCode::kPreempted, error.what_without_backtrace());
  } catch (const train::NonFiniteError& error) {
    return report_failure(
        op, ExitCode::kNonFinite, error.what_without_backtrace());
  } catch (const checkpoint::CheckpointError& error) {
    return report_failure(
        op, ExitCode::kCheckpoint, error.what_without_backtrace());
  } catch (const mesh::DisagreementError& error) {
    return report_failure(
        op, ExitCode::kDisagreement, error.what_without_backtrace());
  } catch (const mesh::TimeoutError& error) {
    return report_failure(
        op,
        ExitCode::kPeerLost,
        error.what_without_backtrace(),
        ErrorCause::kTimedOut);
  } catch (const c10::DistError& error) {
    return report_failure(
        op,
        ExitCode::kPeerLost,
        error.what_without_backtrace(),
        ErrorCause::kLostPeer);
  } catch (const c10::Error& error) {
    const bool has_no_memory = mesh::is_out_of_memory(error);
    return report_failure(
        op,
        has_no_memory ? ExitCode::kOutOfMemory : ExitCode::kCheckFailed,
        error.what_without_backtrace(),
        has_no_memory ? ErrorCause::kOutOfMemory : ErrorCause::kOther);
  } catch (const std::bad_alloc&) {
    return report_failure(
        op,
        ExitCode::kOutOfMemory,
        "out of memory (std::bad_alloc)",
        ErrorCause::kOutOfMemory);
  } catch (const std::exception& error) {
    return report_failure(op, ExitCode::kCheckFailed, error.what());
  }
}

} // namespace weft::cli
