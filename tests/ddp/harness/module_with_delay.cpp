#include "tests/ddp/harness/module_with_delay.h"

#include <chrono>
#include <thread>
#include <utility>

namespace weft::test {
namespace {

constexpr std::string_view kInside = "module.";

} // namespace

double RandomSleeper::sleep() {
  const std::chrono::duration<double, std::milli> time(
      milliseconds_(generator_));
  std::this_thread::sleep_for(time);
  return time.count();
}

ModuleWithDelay::ModuleWithDelay(
    std::shared_ptr<HarnessModel> its_module,
    const HarnessDelays& delays)
    : module(register_module("module", std::move(its_module))),
      sleeper_(std::make_shared<RandomSleeper>(delays)) {
  tp = module->tp;
  for (const auto& parameter : harness_tensors(*module)) {
    parameter.register_hook(
        [sleeper = sleeper_](const at::Tensor& /*gradient*/) {
          sleeper->sleep();
        });
  }
}

at::Tensor ModuleWithDelay::forward(const Inputs& inputs) {
  return module->forward(inputs);
}

bool ModuleWithDelay::treats_rows_alone() const {
  return module->treats_rows_alone();
}

void ModuleWithDelay::run_backward(const at::Tensor& loss) {
  module->run_backward(loss);
}

void ModuleWithDelay::wrap(
    const mesh::DeviceMesh& dp,
    const ddp::DistributedDataParallelOptions& options) {
  module->wrap(dp, options);
}

std::set<std::string> ModuleWithDelay::wrapped_names() const {
  std::set<std::string> names;
  for (const auto& name : module->wrapped_names()) {
    names.insert(std::string(kInside) + name);
  }
  return names;
}

std::vector<ddp::ParameterGroup> ModuleWithDelay::parameter_groups() const {
  return module->parameter_groups();
}

std::string ModuleWithDelay::name_in_twin(const std::string& name) const {
  return module->name_in_twin(name.substr(kInside.size()));
}

HarnessModel::Inputs
ModuleWithDelay::make_input(int64_t rank, int64_t step, int64_t rows) const {
  return module->make_input(rank, step, rows);
}

at::Tensor ModuleWithDelay::make_loss(
    const Inputs& inputs,
    const at::Tensor& output) {
  auto loss = module->make_loss(inputs, output);
  sleeper_->sleep();
  return loss;
}

std::shared_ptr<data_parallel::CommHook> delayed_hook(
    std::shared_ptr<data_parallel::CommHook> hook,
    const HarnessDelays& delays) {
  const auto sleeper = std::make_shared<RandomSleeper>(delays);
  return data_parallel::make_comm_hook(
      "delayed " + hook->name(),
      hook->divides(),
      [hook, sleeper](const data_parallel::GradBucket& bucket) {
        sleeper->sleep();
        return hook->run(bucket);
      });
}

} // namespace weft::test
