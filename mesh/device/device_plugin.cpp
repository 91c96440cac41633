#include "mesh/device/device_plugin.h"

#include <filesystem>
#include <utility>

#include <dlfcn.h>

#include <torch/version.h>

#include "mesh/bootstrap/env.h"
#include "mesh/error/error.h"

// Note [Device library]
// ~~~~~~~~~~~~~~~~~~~~~
// What needs CUDA or NCCL is in one shared object, opened only for `device:
// cuda`, so that a CPU run maps nothing of either and one program serves
// both. It must be opened before the first question about devices: libtorch
// remembers for good that there is no CUDA if it is asked earlier.
//
// The program's own code is in static libraries, which it does not export, and
// nothing in the library may need them. So what crosses the border is one
// struct of plain functions over libtorch's types: the library holds what
// needs CUDA's headers (make a group, call back when a work is over, kernels)
// and no logic of ours; how collectives are put together from c10d's stays in
// mesh/backends/nccl_backend.cpp, where it is tested without a GPU. Where the
// library uses a function of ours (cuda/ links weft::mesh) it has a copy of its
// own, which is harmless because there are no mutable statics. Exceptions cross
// the border: the runtime compares their types by name.
//
// Both sides share C++ types, so both must come from one version of weft and
// one of libtorch: `abi`, then the versions, are compared before anything else
// is called.

namespace weft::mesh {
namespace {

constexpr const char* kLibrary = "libweft_cuda.so";

[[noreturn]] void refuse(const std::string& what) {
  throw_error<UsageError>(detail::concat("[device] ", what));
}

std::string last_loader_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error";
}

void check_fits(const DevicePlugin* plugin, const std::string& path) {
  constexpr const char* kRebuild =
      " Build both from one checkout with one libtorch (make build).";
  if (plugin == nullptr || plugin->abi != DevicePlugin::kAbi) {
    refuse(detail::concat(
        path,
        " has plugin interface ",
        plugin == nullptr ? 0 : plugin->abi,
        ", this program ",
        DevicePlugin::kAbi,
        ".",
        kRebuild));
  }
  const auto compare = [&](const char* what,
                           const std::string& theirs,
                           const std::string& ours) {
    if (theirs != ours) {
      refuse(detail::concat(
          path,
          " was built with ",
          what,
          " ",
          theirs,
          ", this program with ",
          ours,
          ".",
          kRebuild));
    }
  };
  compare("weft", plugin->weft_version, WEFT_VERSION);
  compare("libtorch", plugin->libtorch_version, TORCH_VERSION);
}

std::filesystem::path program_folder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : program.parent_path();
}

std::string list(const std::vector<std::string>& paths) {
  std::string text;
  for (const auto& path : paths) {
    text += (text.empty() ? "" : ", ") + path;
  }
  return text;
}

const DevicePlugin& open_cuda() {
  const auto candidates = cuda_library_candidates();
  for (const auto& path : candidates) {
    std::error_code error;
    if (path != kLibrary && std::filesystem::exists(path, error)) {
      return load_device_plugin(std::filesystem::absolute(path).string());
    }
  }
  std::string why;
  if (candidates.back() == kLibrary) {
    if (dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL) != nullptr) {
      return load_device_plugin(kLibrary);
    }
    why = detail::concat(" (", last_loader_error(), ")");
  }
  refuse(detail::concat(
      "device: cuda needs ",
      kLibrary,
      ", which is not at ",
      list(candidates),
      why,
      ". Build it on a host with the CUDA and NCCL headers (docs/gpu.md), set "
      "WEFT_CUDA_LIBRARY to its path, or set device: cpu."));
}

} // namespace

const DevicePlugin& load_device_plugin(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    refuse(detail::concat(
        "cannot load ",
        path,
        ": ",
        last_loader_error(),
        ". Install the CUDA libraries that come with the torch wheel "
        "(WEFT_CUDA=on make setup), or set device: cpu."));
  }
  using Entry = const DevicePlugin* (*)();
  const auto entry =
      reinterpret_cast<Entry>(dlsym(library, kDevicePluginEntry));
  if (entry == nullptr) {
    refuse(detail::concat(
        path,
        " is not a Weft device library: it lacks the symbol ",
        kDevicePluginEntry));
  }
  const DevicePlugin* plugin = entry();
  check_fits(plugin, path);
  return *plugin;
}

std::vector<std::string> cuda_library_candidates() {
  if (const auto path = env::get("WEFT_CUDA_LIBRARY")) {
    return {*path};
  }
  std::vector<std::string> candidates;
  if (const auto folder = program_folder(); !folder.empty()) {
    candidates.push_back((folder / kLibrary).string());
    candidates.push_back(
        (folder / ".." / "lib" / kLibrary).lexically_normal().string());
    const auto installed =
        (folder / ".." / WEFT_LIBDIR / kLibrary).lexically_normal().string();
    if (installed != candidates.back()) {
      candidates.push_back(installed);
    }
  }
  candidates.emplace_back(kLibrary);
  return candidates;
}

namespace {

// One outcome a process: libtorch learns of CUDA once.
struct Outcome {
  const DevicePlugin* plugin = nullptr;
  /// Why there is none, or why it cannot be used.
  std::string reason;
};

const Outcome& cuda_outcome() {
  static const Outcome outcome = [] {
    try {
      const DevicePlugin& plugin = open_cuda();
      return Outcome{&plugin, plugin.unusable_reason()};
    } catch (const UsageError& error) {
      return Outcome{nullptr, error.what_without_backtrace()};
    }
  }();
  return outcome;
}

} // namespace

const DevicePlugin& cuda_plugin() {
  const auto& outcome = cuda_outcome();
  if (outcome.plugin == nullptr) {
    throw_error<UsageError>(outcome.reason);
  }
  if (!outcome.reason.empty()) {
    refuse(outcome.reason);
  }
  return *outcome.plugin;
}

const DevicePlugin* find_cuda_plugin() {
  const auto& outcome = cuda_outcome();
  return outcome.reason.empty() ? outcome.plugin : nullptr;
}

} // namespace weft::mesh
