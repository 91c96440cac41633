#include "ddp/reducer/logging_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "dtensor/tensor/dtensor.h"
#include "mesh/bootstrap/debug_level.h"
#include "tests/ddp/models.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::Mlp;
using test::RankContext;
using test::run_ranks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// The field names of PyTorch 2.15: static, environment and runtime.
const std::vector<std::string> kFields{
    "module_name",
    "world_size",
    "rank",
    "iteration",
    "dtypes",
    "num_parameter_tensors",
    "total_parameter_size_bytes",
    "bucket_sizes",
    "bucket_cap_bytes",
    "device_ids",
    "output_device",
    "broadcast_buffers",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
    "backend_name",
    "has_sync_bn",
    "is_multi_device_module",
    "gloo_num_threads",
    "master_port",
    "master_addr",
    "torch_distributed_debug",
    "cuda_visible_devices",
    "gloo_socket_ifname",
    "gloo_device_transport",
    "nccl_socket_ifname",
    "nccl_blocking_wait",
    "nccl_async_error_handling",
    "nccl_debug",
    "nccl_nthreads",
    "nccl_ib_timeout",
    "unused_parameter_size",
    "num_buckets_reduced",
    "has_rebuilt_buckets",
    "rebuilt_bucket_sizes",
    "rebuilt_per_bucket_param_indices",
    "prev_iteration_grad_ready_order_indices",
    "forward_compute_time",
    "forward_compute_time_start",
    "backward_compute_time",
    "backward_compute_time_start",
    "backward_compute_time_end",
    "backward_comm_time",
    "backward_comm_time_start",
    "backward_comm_time_end",
    "backward_compute_comm_overlap_time",
    "avg_forward_compute_time",
    "avg_backward_compute_time",
    "avg_backward_comm_time",
    "avg_backward_compute_comm_overlap_time",
    "comm_hook",
    "join_uneven_inputs",
    "can_set_static_graph",
    "has_error",
    "error"};

TEST(DDPLoggingData, HasEveryFieldOfPyTorchsInJson) {
  const auto text = to_json({});
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  const auto json = nlohmann::ordered_json::parse(text);
  std::vector<std::string> names;
  for (const auto& item : json.items()) {
    names.push_back(item.key());
  }
  EXPECT_EQ(names, kFields);
}

TEST(DDPLoggingData, KeepsListsTextAndWhatIsNotSet) {
  DDPLoggingData data;
  data.module_name = "Net \"2\"";
  data.bucket_sizes = {8, 16};
  data.rebuilt_per_bucket_param_indices = {{1, 0}, {2}};
  data.nccl_debug = "INFO";
  data.has_error = true;
  data.error = "a\nb";
  data.avg_backward_comm_time = int64_t{1} << 40;
  const auto text = to_json(data);
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["module_name"], "Net \"2\"");
  EXPECT_EQ(json["bucket_sizes"].dump(), "[8,16]");
  EXPECT_EQ(json["rebuilt_per_bucket_param_indices"].dump(), "[[1,0],[2]]");
  EXPECT_EQ(json["nccl_debug"], "INFO");
  EXPECT_TRUE(json["master_addr"].is_null());
  EXPECT_TRUE(json["gloo_num_threads"].is_null());
  EXPECT_EQ(json["has_error"], true);
  EXPECT_EQ(json["static_graph"], false);
  EXPECT_EQ(json["error"], "a\nb");
  EXPECT_EQ(json["avg_backward_comm_time"], int64_t{1} << 40);
}

TEST(DDPLoggingData, DescribesModelMeshAndOptions) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    const Mlp model(at::kDouble);
    DistributedDataParallelOptions options;
    options.bucket_cap_mb = 0.5;
    options.find_unused_parameters = true;
    options.forward_sync_buffers = false;
    const auto data = describe_construction(
        model, data_parallel::parameters_of(model), mesh, options);
    EXPECT_EQ(data.module_name, "Mlp");
    EXPECT_EQ(data.world_size, 2);
    EXPECT_EQ(data.rank, self.rank);
    EXPECT_THAT(data.dtypes, ElementsAre("Double"));
    EXPECT_EQ(data.num_parameter_tensors, 6);
    EXPECT_EQ(
        data.total_parameter_size_bytes,
        8 * (6 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3));
    EXPECT_EQ(data.bucket_cap_bytes, 1 << 19);
    EXPECT_TRUE(data.device_ids.empty());
    EXPECT_EQ(data.output_device, -1);
    EXPECT_FALSE(data.broadcast_buffers);
    EXPECT_TRUE(data.find_unused_parameters);
    EXPECT_TRUE(data.gradient_as_bucket_view);
    EXPECT_FALSE(data.static_graph);
    EXPECT_EQ(data.backend_name, mesh.group("dp").backend());
    EXPECT_FALSE(data.is_multi_device_module);
    EXPECT_TRUE(describe_construction(model, {}, mesh, {}).broadcast_buffers);
    EXPECT_EQ(
        describe_construction(model, {}, mesh, {}).bucket_cap_bytes, 25 << 20);
  });
}

TEST(DDPLoggingData, CountsWhatThisRankHoldsOfADTensor) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({1, 2}, {"dp", "tp"});
    const std::vector<data_parallel::NamedTensor> parameters{
        {"a",
         dtensor::distribute_tensor(
             at::ones({4, 6}), mesh["tp"], {dtensor::Shard(0)})},
        {"b", at::ones({3}, at::kBFloat16)}};
    const auto data = describe_construction(Mlp(), parameters, mesh["dp"], {});
    EXPECT_EQ(data.world_size, 1);
    EXPECT_EQ(data.total_parameter_size_bytes, 4 * 2 * 6 + 2 * 3);
    EXPECT_THAT(data.dtypes, ElementsAre("BFloat16", "Float"));
    EXPECT_THAT(
        bucket_indices({{"b"}, {"a"}}, parameters),
        ElementsAre(ElementsAre(1), ElementsAre(0)));
  });
}

class DDPLogTest : public ::testing::Test {
 protected:
  void TearDown() override { mesh::set_debug_level(level_); }

  /// What is written to stderr.
  static std::string logged(mesh::DebugLevel level) {
    mesh::set_debug_level(level);
    DDPLoggingData data;
    data.module_name = "Mlp";
    data.rank = 1;
    data.world_size = 4;
    data.iteration = 10;
    ::testing::internal::CaptureStderr();
    log_construction(data);
    log_iteration(data);
    return ::testing::internal::GetCapturedStderr();
  }

 private:
  mesh::DebugLevel level_ = mesh::get_debug_level();
};

TEST_F(DDPLogTest, SaysAsMuchAsTheDebugLevelWants) {
  EXPECT_EQ(logged(mesh::DebugLevel::kOff), "");
  const auto info = logged(mesh::DebugLevel::kInfo);
  EXPECT_THAT(
      info, HasSubstr("INFO rank=1 ddp set up: {\"module_name\":\"Mlp\","));
  EXPECT_THAT(info, Not(HasSubstr("iteration 10")));
  const auto detail = logged(mesh::DebugLevel::kDetail);
  EXPECT_THAT(detail, HasSubstr("INFO rank=1 ddp set up: {"));
  EXPECT_THAT(
      detail,
      HasSubstr("INFO rank=1 ddp iteration 10: {\"unused_parameter_size\":0,"));
}

} // namespace
} // namespace weft::ddp
