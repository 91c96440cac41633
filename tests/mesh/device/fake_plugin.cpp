// A device library as weft's own might turn out to be: of another version, or
// on a machine without a device. Built once for each FAKE_* below.
#include <string>

#include <torch/version.h>

#include "mesh/device/device_plugin.h"

namespace {

std::string unusable_reason() {
  return "there is no device here, this library is made up.";
}

weft::mesh::DevicePlugin make() {
  weft::mesh::DevicePlugin plugin;
  plugin.abi = weft::mesh::DevicePlugin::kAbi;
  plugin.weft_version = WEFT_VERSION;
  plugin.libtorch_version = TORCH_VERSION;
  plugin.unusable_reason = unusable_reason;
#if defined(FAKE_OTHER_ABI)
  plugin.abi += 1;
  plugin.weft_version = nullptr;
#elif defined(FAKE_OTHER_LIBTORCH)
  plugin.libtorch_version = "1.0.0";
#elif defined(FAKE_OTHER_WEFT)
  plugin.weft_version = "0.0.1";
#endif
  return plugin;
}

const weft::mesh::DevicePlugin kPlugin = make();

} // namespace

extern "C" const weft::mesh::DevicePlugin* weft_device_plugin() {
  return &kPlugin;
}
