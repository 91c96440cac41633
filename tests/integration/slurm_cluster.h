#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/process.h"

namespace weft::test {

/// The program's path, or "" if neither PATH nor the folders for root have it.
std::string find_program(const std::string& name);

/// A real Slurm on loopback: munged, slurmctld, and a slurmd for each of the
/// nodes node1 and node2, which claim 64 processors each. Their files are in
/// a folder of their own. They end with this object, and also with the test's
/// process, however that ends.
class SlurmCluster {
 public:
  /// The programs that are not installed, or what else stands in the way.
  static std::string obstacle();

  /// Throws: std::runtime_error, with the end of the logs, if it does not come
  /// up.
  explicit SlurmCluster(std::filesystem::path folder);
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;
  ~SlurmCluster();

  /// Cancels all jobs and ends the daemons. Returns the command lines of what
  /// is left then, which it kills.
  std::vector<std::string> end();

  /// Tells Slurm's commands where this cluster is.
  Process::Variables variables() const;
  /// The output of a command that must succeed, such as {"squeue", "-h"}.
  std::string ask(const std::vector<std::string>& words) const;

 private:
  void write_configuration() const;
  void start(const std::string& name, std::vector<std::string> words);
  bool is_up() const;
  std::string logs() const;

  std::filesystem::path folder_;
  /// In the order of their start.
  std::vector<std::unique_ptr<Process>> daemons_;
};

} // namespace weft::test
