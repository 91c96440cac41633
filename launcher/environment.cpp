#include "launcher/environment.h"

#include <algorithm>
#include <map>

#include <unistd.h>

#include "base/usable_cores.h"
#include "launcher/options/worker_count.h"
#include "launcher/process/virtual_device.h"

namespace weft::launcher {

std::vector<std::string> worker_environment(
    const std::vector<std::string>& base,
    const Options& options,
    const WorkerContext& context,
    int local_rank) {
  std::map<std::string, std::string> variables;
  for (const auto& entry : base) {
    const size_t equals = entry.find('=', 1);
    if (equals != std::string::npos) {
      variables.insert_or_assign(
          entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  const RankAssignment& place = context.rank_assignment;
  const int position = local_rank - context.workers.first;
  const auto set = [&](const char* name, int value) {
    variables[name] = std::to_string(value);
  };
  for (const char* name : {"RANK", "ROLE_RANK"}) {
    set(name, place.first_rank + position);
  }
  for (const char* name : {"WORLD_SIZE", "ROLE_WORLD_SIZE"}) {
    set(name, place.world_size);
  }
  set("LOCAL_RANK", options.virtual_local_rank ? 0 : position);
  set("LOCAL_WORLD_SIZE", context.workers.count);
  set("GROUP_RANK", place.node_rank);
  set("GROUP_WORLD_SIZE", place.node_count);
  variables["ROLE_NAME"] = options.role;
  variables["MASTER_ADDR"] = place.master_addr;
  set("MASTER_PORT", place.master_port);
  set("TORCHELASTIC_RESTART_COUNT", place.restart_count);
  set("TORCHELASTIC_MAX_RESTARTS", options.max_restarts);
  variables["TORCHELASTIC_RUN_ID"] = options.run_id;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  variables["TORCHELASTIC_ERROR_FILE"] = context.error_file;
  variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (options.worker_count > 1) {
    const auto threads = base::usable_cores() / options.worker_count;
    variables.try_emplace(
        "OMP_NUM_THREADS", std::to_string(std::max<int64_t>(threads, 1)));
  }
  variables.try_emplace("WEFT_LAUNCH_T0", context.start_time);
  if (options.log_level) {
    variables[base::kLogLevelVariable] = base::to_string(*options.log_level);
  }
  // Removes the variables of a weftrun that started this one. They are not for
  // its workers.
  variables.erase("WEFT_MASTER_FD");
  variables.erase("WEFT_STDERR_TTY");
  variables.erase("WEFT_BIND_ADDR");
  if (!place.bind_address.empty()) {
    variables["WEFT_BIND_ADDR"] = place.bind_address;
  }
  if (position == 0 && context.master_fd >= 0) {
    variables["WEFT_MASTER_FD"] = std::to_string(context.master_fd);
  }
  variables.erase("WEFT_LIGHTHOUSE_FD");
  variables.erase("WEFT_GROUP_LIFE");
  variables.erase("WEFT_HOST_RANKS");
  if (context.replica_groups > 0) {
    if (options.numa_binding == NumaBinding::kNone) {
      // Without NUMA binding, the workers share the host's cores.
      set("WEFT_HOST_RANKS", options.worker_count);
    }
    set("REPLICA_GROUP_ID", context.replica_group);
    set("NUM_REPLICA_GROUPS", context.replica_groups);
    set("WEFT_LIGHTHOUSE_FD", context.lighthouse_fd);
    variables["WEFT_GROUP_LIFE"] = std::to_string(context.group_life);
  }
  if (context.stderr_is_terminal) {
    variables["WEFT_STDERR_TTY"] = "1";
  }
  if (options.virtual_local_rank) {
    set_virtual_device(variables, local_rank);
  } else if (context.replica_groups > 0) {
    set_group_devices(
        variables,
        context.workers,
        options.worker_count,
        count_gpus("/dev", nullptr));
  }
  std::vector<std::string> environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    environment.push_back(name);
    environment.back().append("=").append(value);
  }
  return environment;
}

std::vector<std::string> current_environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    environment.emplace_back(*entry);
  }
  return environment;
}

} // namespace weft::launcher
