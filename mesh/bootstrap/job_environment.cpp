#include "mesh/bootstrap/job_environment.h"

#include <limits>
#include <string_view>
#include <utility>

#include "base/fnv.h"
#include "base/loopback.h"
#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/job_variables.h"
#include "mesh/bootstrap/slurm_list.h"
#include "mesh/bootstrap/sockets.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

constexpr int64_t kMaxPort = std::numeric_limits<uint16_t>::max();

[[noreturn]] void
throw_missing(const char* name, const JobRank& job, const std::string& why) {
  throw_error<UsageError>(detail::concat(
      "[environment] ",
      name,
      " is not set, ",
      why,
      " (rank ",
      job.rank,
      "/",
      job.world_size,
      ", ",
      job.local_world_size,
      " on this host, by ",
      to_string(job.source),
      ")"));
}

/// Returns true if the launcher always sets the number of ranks on this host.
bool knows_hosts(const JobRank& job) {
  return job.source != JobSource::kTorchrun && job.source != JobSource::kPmix;
}

bool is_on_one_host(const JobRank& job) {
  return job.local_world_size == job.world_size;
}

std::string first_slurm_host(
    const JobVariables& variables,
    const JobRank& job) {
  const char* name = variables.first_set(
      {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const auto list = variables.text(name);
  // Slurm can distribute tasks so that rank 0 is not on the first host of the
  // list. Only rank 0 can detect this.
  if (!list || (job.rank == 0 && variables.text("SLURM_NODEID") != "0")) {
    throw_missing(
        "MASTER_ADDR",
        job,
        detail::concat(
            "and ",
            variables.show(name),
            " with ",
            variables.show("SLURM_NODEID"),
            " does not give rank 0's host. Set MASTER_ADDR to the name or "
            "address of that host on all ranks."));
  }
  return expand_host_list(name, *list).front();
}

std::string default_address(const JobVariables& variables, const JobRank& job) {
  if (!knows_hosts(job)) {
    throw_missing(
        "MASTER_ADDR",
        job,
        "so the rendezvous address is unknown. Start the ranks with weftrun, "
        "or set MASTER_ADDR to the name or address of rank 0's host (127.0.0.1 "
        "on one host).");
  }
  if (is_on_one_host(job)) {
    return base::loopback_address();
  }
  if (job.source == JobSource::kSlurm) {
    return first_slurm_host(variables, job);
  }
  throw_missing(
      "MASTER_ADDR",
      job,
      "and the ranks are on several hosts. Set MASTER_ADDR to the name or "
      "address of rank 0's host on all ranks: mpirun -x MASTER_ADDR=node1 with "
      "Open MPI, mpiexec -genv MASTER_ADDR node1 with MPICH and Intel MPI.");
}

std::string find_address(const JobVariables& variables, const JobRank& job) {
  const auto given = variables.text("MASTER_ADDR");
  if (!given) {
    return default_address(variables, job);
  }
  if (knows_hosts(job) && !is_on_one_host(job) && is_loopback(*given)) {
    throw_error<UsageError>(detail::concat(
        "[environment] MASTER_ADDR=",
        *given,
        " is a loopback address, but ",
        to_string(job.source),
        " started only ",
        job.local_world_size,
        " of ",
        job.world_size,
        " ranks on this host. Set MASTER_ADDR to the name or address of rank "
        "0's host."));
  }
  return *given;
}

/// Returns FNV-1a with its high bits mixed into the weaker low bits, which
/// select the port.
uint64_t mixed_hash_of(std::string_view text) {
  const uint64_t hash = base::fnv1a(text);
  return hash ^ (hash >> 32);
}

/// The identity of a job, which is equal on all its ranks: a text, and a number
/// that selects the port.
struct JobIdentity {
  std::string key;
  uint64_t number;
};

JobIdentity identify(const JobVariables& variables, const JobRank& job) {
  if (job.source == JobSource::kSlurm) {
    const auto id = static_cast<uint64_t>(
        variables.required("SLURM_JOB_ID", "SLURM_STEP_ID", 0, kMaxSlurmId));
    const auto step = static_cast<uint64_t>(
        variables.required("SLURM_STEP_ID", "SLURM_JOB_ID", 0, kMaxSlurmId));
    // Concurrent jobs have IDs close to each other, and few steps. This formula
    // gives different ports to steps of jobs whose IDs differ by less than 99,
    // if the step IDs are below 100.
    return {
        detail::concat(
            variables.show("SLURM_JOB_ID"),
            " and ",
            variables.show("SLURM_STEP_ID")),
        id * 101 + step};
  }
  const bool is_pmix =
      job.source == JobSource::kOpenMpi || job.source == JobSource::kPmix;
  const char* name =
      is_pmix
          ? variables.first_set({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
          : variables.first_set({"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"});
  const std::string key =
      variables.has(name)
          ? variables.show(name)
          : detail::concat(
                to_string(job.source), "'s world of ", job.world_size);
  return {key, mixed_hash_of(key)};
}

} // namespace

JobEnvironment read_job_environment(const VariableLookup& lookup) {
  const JobVariables variables(lookup);
  JobEnvironment job{read_job_rank(lookup), {}, 0, {}, {}};
  if (job.source == JobSource::kNone) {
    return job;
  }
  const auto port = variables.number("MASTER_PORT", 1, kMaxPort);
  job.master_port = static_cast<uint16_t>(port.value_or(0));
  if (job.world_size == 1) {
    job.master_address = variables.text("MASTER_ADDR").value_or("");
    return job;
  }
  job.master_address = find_address(variables, job);
  if (job.source == JobSource::kTorchrun) {
    if (!port) {
      throw_missing(
          "MASTER_PORT",
          job,
          "so the rendezvous address is unknown. Start the ranks with weftrun, "
          "or set MASTER_PORT to a free port of rank 0's host.");
    }
    return job;
  }
  auto identity = identify(variables, job);
  if (!port) {
    job.master_port = static_cast<uint16_t>(
        kFirstJobPort + static_cast<int64_t>(identity.number % kJobPorts));
    job.port_origin = identity.key;
  }
  job.job_key = std::move(identity.key);
  return job;
}

JobEnvironment current_job_environment() {
  auto job = read_job_environment(env::get);
  print_note_once(job);
  return job;
}

} // namespace weft::mesh
