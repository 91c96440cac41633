#include "launcher/environment.h"

#include <map>

#include <unistd.h>

namespace weft::launcher {

std::vector<std::string> worker_environment(
    const std::vector<std::string>& base,
    const Options& options,
    const LaunchFacts& facts,
    int local_rank) {
  std::map<std::string, std::string> variables;
  for (const auto& entry : base) {
    const size_t equals = entry.find('=', 1);
    if (equals != std::string::npos) {
      variables.insert_or_assign(
          entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  // On one host the local rank is the rank, and the one group is group 0.
  const std::string rank = std::to_string(local_rank);
  const std::string size = std::to_string(options.worker_count);
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) {
    variables[name] = rank;
  }
  for (const char* name :
       {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) {
    variables[name] = size;
  }
  variables["GROUP_RANK"] = "0";
  variables["GROUP_WORLD_SIZE"] = "1";
  variables["ROLE_NAME"] = options.role;
  variables["MASTER_ADDR"] = options.master_addr;
  variables["MASTER_PORT"] = std::to_string(facts.master_port);
  variables["TORCHELASTIC_RESTART_COUNT"] = "0";
  variables["TORCHELASTIC_MAX_RESTARTS"] = "0";
  variables["TORCHELASTIC_RUN_ID"] = options.run_id;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  variables["TORCHELASTIC_ERROR_FILE"] = facts.error_file;
  variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (options.worker_count > 1) {
    variables.try_emplace("OMP_NUM_THREADS", "1");
  }
  variables.try_emplace("WEFT_LAUNCH_T0", facts.start_time);
  // Those of a weftrun around this one are not for its workers.
  variables.erase("WEFT_MASTER_FD");
  variables.erase("WEFT_STDERR_TTY");
  if (local_rank == 0) {
    variables["WEFT_MASTER_FD"] = std::to_string(facts.master_fd);
  }
  if (facts.stderr_is_terminal) {
    variables["WEFT_STDERR_TTY"] = "1";
  }
  std::vector<std::string> environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    environment.push_back(name);
    environment.back().append("=").append(value);
  }
  return environment;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    environment.emplace_back(*entry);
  }
  return environment;
}

} // namespace weft::launcher
