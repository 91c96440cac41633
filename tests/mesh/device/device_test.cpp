#include "mesh/device/device.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/bootstrap/env.h"
#include "mesh/device/device_plugin.h"
#include "mesh/error/error.h"
#include "tests/support/expect_error.h"

namespace weft::mesh {
namespace {

using test::message_of_thrown;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string fake(const std::string& name) {
  return detail::concat(WEFT_FAKE_PLUGINS "/libweft_fake_", name, ".so");
}

TEST(Device, EachRankOfAHostHasItsOwn) {
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(choose_device(rank, 4, 4, std::nullopt), rank);
    EXPECT_EQ(choose_device(rank, 4, 8, std::nullopt), rank);
  }
  EXPECT_EQ(choose_device(3, 4, 1, 0), 0);
}

TEST(Device, MoreRanksThanDevicesAreRefused) {
  EXPECT_THAT(
      message_of_thrown<UsageError>(
          [] { choose_device(0, 4, 2, std::nullopt); }),
      AllOf(
          HasSubstr("4 ranks on this host vs 2 CUDA device(s)"),
          HasSubstr("--nproc-per-node 2"),
          HasSubstr("WEFT_CUDA_DEVICE=0")));
  EXPECT_THAT(
      message_of_thrown<UsageError>([] { choose_device(0, 1, 2, 2); }),
      HasSubstr("WEFT_CUDA_DEVICE=2 vs 2 CUDA device(s)"));
}

TEST(Device, TheCpuNeedsNothing) {
  EXPECT_TRUE(open_device("cpu", 7, 8).is_cpu());
  EXPECT_FALSE(peak_device_mb(c10::Device(c10::DeviceType::CPU)));
  EXPECT_THAT(
      message_of_thrown<UsageError>([] { open_device("gpu", 0, 1); }),
      HasSubstr("'gpu' is unknown. Use cpu or cuda."));
}

TEST(Device, TheTransportIsNcclUnlessTheEnvironmentSaysSo) {
  env::unset("WEFT_CUDA_TRANSPORT");
  EXPECT_FALSE(uses_host_transport());
  env::set_default("WEFT_CUDA_TRANSPORT", "host");
  EXPECT_TRUE(uses_host_transport());
  env::unset("WEFT_CUDA_TRANSPORT");
  env::set_default("WEFT_CUDA_TRANSPORT", "mpi");
  EXPECT_THAT(
      message_of_thrown<UsageError>([] { uses_host_transport(); }),
      HasSubstr("WEFT_CUDA_TRANSPORT=mpi is unknown. Use nccl, or host"));
  env::unset("WEFT_CUDA_TRANSPORT");
}

// weftrun and torchrun export 1, which ends the process with SIGABRT.
TEST(OpenDevice, WeftChoosesWhatAFailedCollectiveDoes) {
  const char* torchs = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  const char* ours = "WEFT_NCCL_ASYNC_ERROR_HANDLING";
  env::unset("WEFT_CUDA_LIBRARY");
  env::set_default("WEFT_CUDA_LIBRARY", "/nowhere/libweft_cuda.so");
  const auto chosen = [&] {
    env::unset(torchs);
    env::set_default(torchs, "1");
    EXPECT_THROW(open_device("cuda", 0, 1), UsageError);
    return env::get(torchs);
  };
  const char* dump = "TORCH_NCCL_DUMP_ON_TIMEOUT";
  env::unset(ours);
  env::unset(dump);
  EXPECT_EQ(chosen(), "2");
  EXPECT_EQ(env::get(dump), "0") << "failures are acted on at once";
  env::unset(dump);
  env::set_default(dump, "1");
  EXPECT_EQ(chosen(), "2");
  EXPECT_EQ(env::get(dump), "1") << "a user's value is kept";
  env::set_default(ours, "1");
  EXPECT_EQ(chosen(), "1");
  env::unset(ours);
  env::set_default(ours, "abort");
  EXPECT_THAT(
      message_of_thrown<UsageError>([] { open_device("cuda", 0, 1); }),
      HasSubstr("WEFT_NCCL_ASYNC_ERROR_HANDLING=abort"));
  for (const auto* name : {torchs, ours, dump, "WEFT_CUDA_LIBRARY"}) {
    env::unset(name);
  }
}

TEST(DevicePlugin, AFittingLibraryIsTaken) {
  const auto& plugin = load_device_plugin(fake("no_device"));
  EXPECT_EQ(plugin.abi, DevicePlugin::kAbi);
  EXPECT_THAT(plugin.unusable_reason(), HasSubstr("no device here"));
}

TEST(DevicePlugin, AMissingLibraryIsNamed) {
  EXPECT_THAT(
      message_of_thrown<UsageError>(
          [] { load_device_plugin("/nowhere/libweft_cuda.so"); }),
      AllOf(
          HasSubstr("cannot load /nowhere/libweft_cuda.so"),
          HasSubstr("No such file"),
          HasSubstr("device: cpu")));
}

TEST(DevicePlugin, AFileThatIsNoLibraryIsNamed) {
  EXPECT_THAT(
      message_of_thrown<UsageError>(
          [] { load_device_plugin("/proc/self/status"); }),
      HasSubstr("cannot load /proc/self/status"));
}

TEST(DevicePlugin, ALibraryOfSomethingElseIsRefused) {
  EXPECT_THAT(
      message_of_thrown<UsageError>([] { load_device_plugin("libm.so.6"); }),
      HasSubstr("is not a Weft device library"));
}

TEST(DevicePlugin, AnotherInterfaceIsRefusedBeforeItIsRead) {
  EXPECT_THAT(
      message_of_thrown<UsageError>(
          [] { load_device_plugin(fake("other_abi")); }),
      AllOf(
          HasSubstr(detail::concat(
              "has plugin interface ",
              DevicePlugin::kAbi + 1,
              ", this program ",
              DevicePlugin::kAbi)),
          HasSubstr("make build")));
}

TEST(DevicePlugin, OtherVersionsAreRefused) {
  EXPECT_THAT(
      message_of_thrown<UsageError>(
          [] { load_device_plugin(fake("other_libtorch")); }),
      HasSubstr("was built with libtorch 1.0.0, this program with "));
  EXPECT_THAT(
      message_of_thrown<UsageError>(
          [] { load_device_plugin(fake("other_weft")); }),
      HasSubstr("was built with weft 0.0.1, this program with "));
}

TEST(DevicePlugin, TheLibraryIsLookedForBesideTheProgram) {
  env::unset("WEFT_CUDA_LIBRARY");
  const auto candidates = cuda_library_candidates();
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  ASSERT_GE(candidates.size(), 3U);
  EXPECT_EQ(candidates[0], program.parent_path() / "libweft_cuda.so");
  EXPECT_THAT(candidates[1], EndsWith("/lib/libweft_cuda.so"));
  EXPECT_EQ(candidates.back(), "libweft_cuda.so");
}

} // namespace
} // namespace weft::mesh
