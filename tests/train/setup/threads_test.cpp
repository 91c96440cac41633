#include "train/setup/threads.h"

#include <map>

#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"

namespace weft::train {
namespace {

using mesh::JobSource;

std::optional<int> threads(
    JobSource source,
    int64_t local_world_size,
    const std::map<std::string, std::string>& variables = {},
    int64_t cores = 2) {
  mesh::JobRank job;
  job.source = source;
  job.world_size = 8;
  job.local_world_size = local_world_size;
  const auto lookup = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt
                                    : std::optional(found->second);
  };
  return threads_per_rank(job, lookup, cores);
}

TEST(Threads, RanksThatShareAHostDivideItsCores) {
  EXPECT_EQ(threads(JobSource::kOpenMpi, 4, {}, 64), 16);
  EXPECT_EQ(threads(JobSource::kOpenMpi, 3, {}, 8), 2);
  EXPECT_EQ(threads(JobSource::kSlurm, 4), 1);
  EXPECT_EQ(threads(JobSource::kOpenMpi, 2), 1);
  EXPECT_EQ(threads(JobSource::kSlurm, 1), std::nullopt);
  EXPECT_EQ(threads(JobSource::kNone, 1), std::nullopt);
}

TEST(Threads, SlurmsCoresOfATaskAreTaken) {
  const std::map<std::string, std::string> cores{{"SLURM_CPUS_PER_TASK", "6"}};
  EXPECT_EQ(threads(JobSource::kSlurm, 4, cores), 6);
  EXPECT_EQ(threads(JobSource::kSlurm, 1, cores), 6);
  // Of the batch script around mpirun or torchrun.
  EXPECT_EQ(threads(JobSource::kOpenMpi, 4, cores), 1);
  EXPECT_EQ(
      fixtures::message_of<mesh::UsageError>([] {
        threads(JobSource::kSlurm, 4, {{"SLURM_CPUS_PER_TASK", "all"}});
      }),
      "[environment] SLURM_CPUS_PER_TASK=all is not an integer from 1 to "
      "65536.");
}

TEST(Threads, OmpNumThreadsIsLeftAlone) {
  EXPECT_EQ(
      threads(
          JobSource::kSlurm,
          4,
          {{"OMP_NUM_THREADS", "3"}, {"SLURM_CPUS_PER_TASK", "6"}}),
      std::nullopt);
}

} // namespace
} // namespace weft::train
