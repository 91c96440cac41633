#include "launcher/process/virtual_device.h"

#include <cstdlib>
#include <sstream>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

constexpr const char* kCuda = "CUDA_VISIBLE_DEVICES";
constexpr const char* kHip = "HIP_VISIBLE_DEVICES";

std::vector<std::string> listed_devices(const std::string& list) {
  std::vector<std::string> devices;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) {
    const size_t begin = part.find_first_not_of(' ');
    const size_t end = part.find_last_not_of(' ');
    if (begin != std::string::npos) {
      devices.push_back(part.substr(begin, end - begin + 1));
    }
  }
  return devices;
}

} // namespace

void set_virtual_device(
    std::map<std::string, std::string>& variables,
    int local_rank) {
  // Each rank sees only its own device, so it must use device 0. weft requires
  // this variable for that.
  variables.try_emplace("WEFT_CUDA_DEVICE", "0");
  const auto hip = variables.find(kHip);
  const bool has_hip = hip != variables.end() && !hip->second.empty();
  const auto list = has_hip ? hip : variables.find(kCuda);
  if (list == variables.end()) {
    variables[kCuda] = std::to_string(local_rank);
    return;
  }
  const auto devices = listed_devices(list->second);
  if (devices.empty()) {
    return;
  }
  const std::string device = devices.at(static_cast<size_t>(local_rank));
  list->second = device;
  variables[kCuda] = device;
}

void set_group_devices(
    std::map<std::string, std::string>& variables,
    LocalRanks workers,
    int worker_count,
    int device_count) {
  const auto hip = variables.find(kHip);
  const bool has_hip = hip != variables.end() && !hip->second.empty();
  const auto list = has_hip ? hip : variables.find(kCuda);
  std::vector<std::string> devices;
  if (list != variables.end()) {
    devices = listed_devices(list->second);
  } else {
    for (int device = 0; device < device_count; ++device) {
      devices.push_back(std::to_string(device));
    }
  }
  if (static_cast<int>(devices.size()) < worker_count) {
    return;
  }
  std::string part;
  for (int worker = workers.first; worker < workers.end(); ++worker) {
    part += (part.empty() ? "" : ",") + devices[static_cast<size_t>(worker)];
  }
  variables[has_hip ? kHip : kCuda] = part;
  variables[kCuda] = part;
}

void check_virtual_devices(int worker_count) {
  const char* list = std::getenv(kHip);
  const bool has_hip = list != nullptr && *list != '\0';
  if (!has_hip) {
    list = std::getenv(kCuda);
  }
  const auto count = listed_devices(list == nullptr ? "" : list).size();
  if (count != 0 && count < static_cast<size_t>(worker_count)) {
    throw LaunchError(fmt::format(
        "--virtual-local-rank gives each worker its own device, but {}={} "
        "lists {} device(s) for {} workers. Start fewer workers, or list more "
        "devices.",
        has_hip ? kHip : kCuda,
        list,
        count,
        worker_count));
  }
}

} // namespace weft::launcher
