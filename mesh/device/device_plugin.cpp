#include "mesh/device/device_plugin.h"

#include <filesystem>
#include <utility>

#include <dlfcn.h>

#include <torch/version.h>

#include "mesh/bootstrap/env.h"
#include "mesh/error/error.h"

// Note [Device library]
// ~~~~~~~~~~~~~~~~~~~~~
// Code that needs CUDA or NCCL is in one shared object. It is opened only for
// `device: cuda`, so that a CPU run maps neither of them and one program serves
// both. It must be opened before libtorch is asked about devices: libtorch
// keeps its first answer, and without the library it finds no CUDA.
//
// The program's own code is in static libraries and is not exported, so nothing
// in the shared object may need it. The interface is one struct of plain
// functions over libtorch's types. The shared object contains what needs CUDA's
// headers (creating a group, calling back when a work is complete, kernels) and
// no other logic. mesh/backends/nccl_backend.cpp, which is tested without a
// GPU, builds the collectives from c10d's. Where the shared object uses a
// function of Weft (cuda/ links weft::mesh) it has its own copy, which is
// harmless because there are no mutable statics. Exceptions pass through the
// interface, because the runtime compares their types by name.
//
// Both sides share C++ types, so both must be built from one version of weft
// and one of libtorch. The loader compares `abi`, then the versions, before it
// calls anything else.

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

// The result of loading the library. There is one per process, because libtorch
// determines once whether there is CUDA.
struct Outcome {
  const DevicePlugin* plugin = nullptr;
  /// The reason why there is no plugin or why it cannot be used. Empty if it
  /// can.
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
