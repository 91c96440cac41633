#include "launcher/rendezvous/admission.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/exit_code.h"
#include "launcher/options/worker_count.h"
#include "launcher/rendezvous/messages.h"

namespace weft::launcher {
namespace {

constexpr int kUsage = static_cast<int>(base::ExitCode::kUsage);
constexpr int kDisagreement = static_cast<int>(base::ExitCode::kDisagreement);

} // namespace

JoinRequest read_join(const nlohmann::json& message) {
  return {
      .host = text_of(message, "host"),
      .version = text_of(message, "version"),
      .command = text_of(message, "command"),
      .node_count = int_of(message, "nodes", 0),
      .node_rank = int_of(message, "node", 0),
      .worker_count =
          std::clamp(int_of(message, "workers", 1), 1, kMaxWorkers)};
}

std::optional<JoinRejection> find_rejection(
    const JoinRequest& request,
    const JobSpec& job_spec) {
  if (request.version != WEFT_VERSION) {
    return JoinRejection{
        .code = kDisagreement,
        .why = fmt::format(
            "weftrun has version {} on host {} and {} on host {}. Install the "
            "same version on all hosts.",
            request.version,
            request.host,
            WEFT_VERSION,
            job_spec.host),
        .is_fatal = true};
  }
  if (request.command != job_spec.command) {
    return JoinRejection{
        .code = kDisagreement,
        .why = fmt::format(
            "hosts {} and {} were given different programs or arguments. "
            "Start the same command on all hosts.",
            job_spec.host,
            request.host),
        .is_fatal = true};
  }
  if (request.node_count != job_spec.node_count) {
    return JoinRejection{
        .code = kUsage,
        .why = fmt::format(
            "--nnodes is {} on host {} and {} on host {}. Use the same value "
            "on all hosts.",
            request.node_count,
            request.host,
            job_spec.node_count,
            job_spec.host),
        .is_fatal = true};
  }
  return std::nullopt;
}

} // namespace weft::launcher
