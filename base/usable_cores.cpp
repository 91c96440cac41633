#include "base/usable_cores.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include <sched.h>

namespace weft::base {
namespace {

namespace fs = std::filesystem;

std::set<int> allowed_cpus() {
  // The kernel refuses a set that is smaller than its own CPU mask, so the size
  // is doubled until it fits.
  constexpr int kMax = 1 << 20;
  std::set<int> cpus;
  for (int count = CPU_SETSIZE; count <= kMax; count *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
        CPU_ALLOC(count), [](cpu_set_t* s) { CPU_FREE(s); });
    const size_t bytes = CPU_ALLOC_SIZE(count);
    if (!set || sched_getaffinity(0, bytes, set.get()) != 0) {
      continue;
    }
    for (int cpu = 0; cpu < count; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.get())) {
        cpus.insert(cpu);
      }
    }
    break;
  }
  return cpus;
}

/// Returns the cores of a quota and a period in microseconds. 0 means no limit.
double cores_of(double quota, double period) {
  return quota > 0 && period > 0 ? quota / period : 0;
}

/// Returns the quota of cgroup v2. cpu.max holds "max 100000" or "150000
/// 100000".
double quota_v2(const fs::path& folder) {
  std::ifstream file(folder / "cpu.max");
  std::string quota;
  double period = 0;
  file >> quota >> period;
  return cores_of(std::strtod(quota.c_str(), nullptr), period);
}

double number_in(const fs::path& path) {
  std::ifstream file(path);
  double number = 0;
  file >> number;
  return number;
}

/// Returns the quota of cgroup v1, where -1 means no limit.
double quota_v1(const fs::path& folder) {
  return cores_of(
      number_in(folder / "cpu.cfs_quota_us"),
      number_in(folder / "cpu.cfs_period_us"));
}

/// Lowers the share's quota to the smallest one of a group and the groups above
/// it. In a container the mount may be the group itself, although /proc has the
/// host's path of the group.
void take_quotas(
    CoreShare& share,
    const fs::path& mount,
    const std::string& group,
    double (*quota_of)(const fs::path&)) {
  auto path = fs::path(group).relative_path();
  while (true) {
    const double quota = quota_of(mount / path);
    if (quota > 0 && (share.quota == 0 || quota < share.quota)) {
      share.quota = quota;
      share.quota_group = (mount / path).string();
    }
    if (path.empty()) {
      return;
    }
    path = path.has_filename() ? path.parent_path() : fs::path();
  }
}

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

} // namespace

// Lines of /proc/self/cgroup are "0::/path" for version 2, and
// "4:cpu,cpuacct:/path" for each hierarchy of version 1.
CoreShare current_core_share(const fs::path& root) {
  CoreShare share;
  share.cpus = allowed_cpus();
  const auto mount = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const auto controllers = line.substr(first + 1, second - first - 1);
    const auto group = line.substr(second + 1);
    if (controllers.empty()) {
      take_quotas(share, mount, group, quota_v2);
    } else if (has_word(controllers, "cpu")) {
      for (const auto& folder : {controllers, std::string("cpu")}) {
        take_quotas(share, mount / folder, group, quota_v1);
      }
    }
  }
  return share;
}

std::string CoreShare::to_text() const {
  std::ostringstream out;
  out << quota << ' ' << cpus.size();
  for (const int cpu : cpus) {
    out << ' ' << cpu;
  }
  out << ' ' << quota_group;
  return out.str();
}

CoreShare CoreShare::from_text(const std::string& text) {
  CoreShare share;
  std::istringstream in(text);
  size_t count = 0;
  in >> share.quota >> count;
  for (int cpu = 0; share.cpus.size() < count && in >> cpu;) {
    share.cpus.insert(cpu);
  }
  in.get();
  std::getline(in, share.quota_group);
  return share;
}

int64_t count_cores(const std::vector<CoreShare>& shares) {
  std::set<int> cpus;
  std::map<std::string, double> quotas;
  bool has_limit = !shares.empty();
  for (const auto& share : shares) {
    cpus.insert(share.cpus.begin(), share.cpus.end());
    quotas[share.quota_group] = share.quota;
    has_limit = has_limit && share.quota > 0;
  }
  auto cores = static_cast<double>(cpus.size());
  if (has_limit) {
    double quota = 0;
    for (const auto& [group, own] : quotas) {
      quota += own;
    }
    cores = std::min(cores, std::ceil(quota));
  }
  return std::max<int64_t>(static_cast<int64_t>(cores), 1);
}

int64_t usable_cores(const fs::path& root) {
  return count_cores({current_core_share(root)});
}

} // namespace weft::base
