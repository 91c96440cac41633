#include "launcher/options/worker_count.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "base/parse_int.h"
#include "base/usable_cores.h"
#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

int count_cpus() {
  return static_cast<int>(base::usable_cores());
}

} // namespace

int count_gpus(const std::filesystem::path& folder, const char* visible) {
  if (visible != nullptr) {
    const std::string_view list = visible;
    if (list.empty() || list.front() == '-') {
      return 0;
    }
    return 1 + static_cast<int>(std::ranges::count(list, ','));
  }
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    count += name.starts_with("nvidia") && name.size() > 6 &&
             std::all_of(name.begin() + 6, name.end(), [](unsigned char c) {
               return std::isdigit(c) != 0;
             });
  }
  return count;
}

int worker_count(const std::string& text) {
  const auto gpus = [] {
    return count_gpus("/dev", std::getenv("CUDA_VISIBLE_DEVICES"));
  };
  if (text == "cpu") {
    return count_cpus();
  }
  if (text == "auto") {
    const int count = gpus();
    return count > 0 ? count : count_cpus();
  }
  if (text == "gpu") {
    const int count = gpus();
    if (count == 0) {
      throw LaunchError(
          "--nproc-per-node gpu: no NVIDIA device is visible on this host. "
          "Give a number, or cpu.");
    }
    return count;
  }
  const auto count = base::parse_int(text, 1, kMaxWorkers);
  if (!count) {
    throw LaunchError(fmt::format(
        "--nproc-per-node {}: expected a number from 1 to {}, auto, cpu or "
        "gpu.",
        text,
        kMaxWorkers));
  }
  return *count;
}

} // namespace weft::launcher
