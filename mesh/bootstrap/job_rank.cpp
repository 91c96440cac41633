#include "mesh/bootstrap/job_rank.h"

#include <array>
#include <cstdio>
#include <limits>
#include <mutex>
#include <numeric>

#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/job_variables.h"
#include "mesh/bootstrap/rank_logger.h"
#include "mesh/bootstrap/slurm_list.h"
#include "mesh/bootstrap/sockets.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

constexpr int64_t kMaxRanks = std::numeric_limits<int32_t>::max();
/// The first step ID that Slurm does not use for tasks of srun, but for the
/// batch script, the shell of salloc or processes of a prolog.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

struct PlaceNames {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

constexpr PlaceNames kTorchrun{
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE"};
constexpr PlaceNames kOpenMpi{
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr PlaceNames kHydra{
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS"};
constexpr PlaceNames kPmi{
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_LOCAL_RANK",
    "PMI_LOCAL_SIZE"};
constexpr PlaceNames kPmix{
    "PMIX_RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE"};

// Note [Which launcher]
// ~~~~~~~~~~~~~~~~~~~~~
// Several launchers can have set variables, and the one nearest to the process
// counts. RANK and WORLD_SIZE come first, because torchrun, weftrun and users
// set them on purpose. mpirun, and Hydra's mpiexec even on one host, start
// their daemons with srun inside a Slurm job, so their ranks carry the Slurm
// step of the daemon (SLURM_PROCID=0 of 1 for all of them). So these two come
// before Slurm, and are recognized by variables that only they set:
// OMPI_COMM_WORLD_* and MPI_LOCALRANKID. A PMI_RANK without these may be srun's
// own (--mpi=pmi2), and then Slurm's variables contain more. PMIX_RANK comes
// last, because it has no size.
//
// Slurm's variables count only in a step of srun. In a batch script and in the
// shell of salloc, SLURM_NTASKS may be 4 although one process was started: a
// world of 4 ranks would wait forever.

bool is_slurm_task(const JobVariables& variables) {
  const auto step = variables.number("SLURM_STEP_ID", 0, kMaxSlurmId);
  return step && *step < kFirstSpecialStep;
}

/// Returns the launcher of this process, without considering RANK and
/// WORLD_SIZE.
JobSource find_other_source(const JobVariables& variables) {
  if (variables.has_any({kOpenMpi.rank, kOpenMpi.world_size})) {
    return JobSource::kOpenMpi;
  }
  if (variables.has(kHydra.rank) && variables.has(kHydra.local_rank)) {
    return JobSource::kHydra;
  }
  if (is_slurm_task(variables)) {
    return JobSource::kSlurm;
  }
  if (variables.has_any({kPmi.rank, kPmi.world_size})) {
    return JobSource::kPmi;
  }
  return variables.has(kPmix.rank) ? JobSource::kPmix : JobSource::kNone;
}

JobSource find_source(const JobVariables& variables) {
  if (variables.has(kTorchrun.rank)) {
    return JobSource::kTorchrun;
  }
  const JobSource source = find_other_source(variables);
  if (!variables.has(kTorchrun.world_size) || source == JobSource::kPmix) {
    return source;
  }
  if (source == JobSource::kNone) {
    return JobSource::kTorchrun;
  }
  throw_error<UsageError>(detail::concat(
      "[environment] RANK is not set, but ",
      variables.show(kTorchrun.world_size),
      " is. Set both, or unset WORLD_SIZE, because ",
      to_string(source),
      " already gives the number of ranks."));
}

/// Reads the position of this rank. If the launcher sets no local rank or local
/// world size, a loopback MASTER_ADDR means that all ranks are on this host.
JobRank read_place(
    const JobVariables& variables,
    const PlaceNames& names,
    JobSource source) {
  JobRank job;
  job.source = source;
  job.world_size =
      variables.required(names.world_size, names.rank, 1, kMaxRanks);
  job.rank =
      variables.required(names.rank, names.world_size, 0, job.world_size - 1);
  const bool one_host = job.world_size == 1 ||
                        is_loopback(variables.text("MASTER_ADDR").value_or(""));
  job.local_world_size =
      variables.number(names.local_world_size, 1, job.world_size)
          .value_or(one_host ? job.world_size : 1);
  job.local_rank =
      variables.number(names.local_rank, 0, job.local_world_size - 1)
          .value_or(one_host ? job.rank : 0);
  job.host_ranks = variables.number("WEFT_HOST_RANKS", 1, kMaxRanks)
                       .value_or(job.local_world_size);
  return job;
}

/// Like read_place(), but throws UsageError if there are several ranks and the
/// launcher has not set the local rank and local world size.
JobRank read_full_place(
    const JobVariables& variables,
    const PlaceNames& names,
    JobSource source) {
  if (variables.has_any({names.local_rank, names.local_world_size})) {
    variables.required_text(names.local_rank, names.local_world_size);
    variables.required_text(names.local_world_size, names.local_rank);
  } else if (
      variables.required(names.world_size, names.rank, 1, kMaxRanks) > 1) {
    throw_error<UsageError>(detail::concat(
        "[environment] ",
        variables.show(names.rank),
        " comes without ",
        names.local_rank,
        " and ",
        names.local_world_size,
        ", so which ranks share a host is unknown. Set RANK, WORLD_SIZE, "
        "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT."));
  }
  return read_place(variables, names, source);
}

JobRank read_slurm_place(const JobVariables& variables) {
  constexpr const char* kStep = "SLURM_STEP_ID";
  const char* size_name =
      variables.first_set({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  const char* counts_name = variables.first_set(
      {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  JobRank job;
  job.source = JobSource::kSlurm;
  job.world_size = variables.required(size_name, kStep, 1, kMaxRanks);
  job.rank = variables.required("SLURM_PROCID", kStep, 0, job.world_size - 1);
  const auto counts = expand_task_counts(
      counts_name, variables.required_text(counts_name, kStep));
  const auto tasks = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (tasks != job.world_size) {
    throw_error<UsageError>(detail::concat(
        "[environment] ",
        variables.show(counts_name),
        " has ",
        tasks,
        " tasks, but ",
        variables.show(size_name),
        ". These values belong to different job steps. Start the ranks with "
        "srun."));
  }
  const int64_t host = variables.required(
      "SLURM_NODEID", kStep, 0, static_cast<int64_t>(counts.size()) - 1);
  job.local_world_size = job.host_ranks = counts[host];
  job.local_rank =
      variables.required("SLURM_LOCALID", kStep, 0, job.local_world_size - 1);
  return job;
}

/// Returns the only rank of a process that no launcher started. Adds a note if
/// the process is in a Slurm job of several tasks.
JobRank alone(const JobVariables& variables) {
  JobRank job;
  const auto tasks = variables.text("SLURM_NTASKS").value_or("1");
  if (variables.has("SLURM_JOB_ID") && tasks != "1") {
    job.note = detail::concat(
        "this Slurm job has SLURM_NTASKS=",
        tasks,
        ", but this process is not a task of srun: it is one rank, alone. "
        "Start it with srun, or with weftrun.");
  }
  return job;
}

} // namespace

const char* to_string(JobSource source) {
  constexpr std::array<const char*, 7> kNames{
      "nobody", "torchrun", "Open MPI", "Hydra", "Slurm", "PMI", "PMIx"};
  return kNames.at(static_cast<size_t>(source));
}

JobRank read_job_rank(const VariableLookup& lookup) {
  const JobVariables variables(lookup);
  switch (const JobSource source = find_source(variables)) {
    case JobSource::kNone:
      return alone(variables);
    case JobSource::kTorchrun:
      return read_place(variables, kTorchrun, source);
    case JobSource::kOpenMpi:
      return read_full_place(variables, kOpenMpi, source);
    case JobSource::kHydra:
      return read_full_place(variables, kHydra, source);
    case JobSource::kSlurm:
      return read_slurm_place(variables);
    case JobSource::kPmi:
      return read_full_place(variables, kPmi, source);
    case JobSource::kPmix:
      if (!variables.has(kPmix.world_size)) {
        throw_error<UsageError>(detail::concat(
            "[environment] ",
            variables.show(kPmix.rank),
            " is set, but the number of ranks is not. Set WORLD_SIZE."));
      }
      return read_place(variables, kPmix, source);
  }
  TORCH_INTERNAL_ASSERT(false);
}

JobRank current_job_rank() {
  auto job = read_job_rank(env::get);
  print_note_once(job);
  return job;
}

void print_note_once(const JobRank& job) {
  static std::once_flag said;
  if (!job.note.empty()) {
    std::call_once(said, [&] { rank_logger(job.rank).info(job.note); });
  }
}

} // namespace weft::mesh
