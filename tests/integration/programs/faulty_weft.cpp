// `weft` with a model that does wrong when it is told to, for tests: in the
// environment, WEFT_FAULT="RANK STEP PARAMETER VALUE[, ...]" makes one element
// of a gradient VALUE in the backward of a step, counted from 1 in this
// process; VALUE "TERM" or "USR1" raises that signal instead. WEFT_DELAY_MS=N
// makes each embedding of tokens wait so long, with any model: a run does few
// steps then while a test waits for something else. WEFT_LOCALE=1 makes it a
// program that writes numbers as 1.234,5.

#include <chrono>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <locale>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include "base/process.h"
#include "cli/main.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::test {
namespace {

struct Fault {
  int64_t step = 0;
  std::string parameter;
  std::string value;
};

// This rank's.
std::vector<Fault> own_faults() {
  const char* rank = std::getenv("RANK");
  const char* text = std::getenv("WEFT_FAULT");
  std::istringstream all(text == nullptr ? "" : text);
  std::vector<Fault> own;
  for (std::string one; std::getline(all, one, ',');) {
    std::istringstream words(one);
    std::string whose;
    Fault fault;
    words >> whose >> fault.step >> fault.parameter >> fault.value;
    if (whose == (rank == nullptr ? "0" : rank)) {
      own.push_back(fault);
    }
  }
  return own;
}

at::Tensor spoil(const at::Tensor& gradient, const std::string& value) {
  if (value == "TERM" || value == "USR1") {
    std::raise(value == "TERM" ? SIGTERM : SIGUSR1);
    return gradient;
  }
  const at::NoGradGuard no_grad;
  const auto* impl = dtensor::dtensor_impl(gradient);
  auto local = (impl ? impl->local() : gradient).clone();
  local.view(-1)[0].fill_(std::stod(value));
  return impl ? dtensor::make_dtensor(
                    local, impl->spec(), impl->sizes(), impl->strides())
              : local;
}

// Each token for itself.
class FaultyImpl : public models::Model {
 public:
  explicit FaultyImpl(int64_t width)
      : up(register_module("up", torch::nn::Embedding(256, width))),
        down(register_module("down", torch::nn::Linear(width, 256))) {}

  at::Tensor forward(const at::Tensor& tokens) override {
    if (!is_listening_) {
      is_listening_ = true;
      listen();
    }
    return down(torch::relu(up(tokens)));
  }

 private:
  void listen() {
    const auto faults = own_faults();
    for (auto& item : named_parameters()) {
      auto step = std::make_shared<int64_t>(0);
      item.value().register_hook(
          [=, name = item.key()](const at::Tensor& gradient) {
            ++*step;
            auto result = gradient;
            for (const auto& fault : faults) {
              if (fault.step == *step && fault.parameter == name) {
                result = spoil(result, fault.value);
              }
            }
            return result;
          });
    }
  }

  torch::nn::Embedding up;
  torch::nn::Linear down;
  bool is_listening_ = false;
};

models::ModelType faulty() {
  return models::model_type<int64_t>(
      {.name = "faulty",
       .title = "faulty model",
       .config =
           [](config::ModelOptions& options) {
             return options.get<int64_t>("width", {.fallback = 32});
           },
       .outputs = [](const int64_t& /*width*/) { return int64_t{256}; },
       .make = [](const int64_t& width) -> std::shared_ptr<models::Model> {
         return std::make_shared<FaultyImpl>(width);
       },
       .plan = [](const models::PlanOptions& options,
                  const int64_t& /*width*/) -> tp::ParallelizePlan {
         return {
             {"up", tp::ColwiseParallel()},
             {"down",
              tp::RowwiseParallel({.output_layouts = options.logits()})}};
       }});
}

std::unique_ptr<at::ObserverContext> wait_before_embedding(
    const at::RecordFunction& function) {
  static const std::chrono::milliseconds delay(
      std::stoi(std::getenv("WEFT_DELAY_MS")));
  if (std::string_view(function.name()) == "aten::embedding") {
    std::this_thread::sleep_for(delay);
  }
  return nullptr;
}

void set_delay() {
  if (std::getenv("WEFT_DELAY_MS") != nullptr) {
    at::addGlobalCallback(at::RecordFunctionCallback(wait_before_embedding)
                              .scopes({at::RecordScope::FUNCTION}));
  }
}

// As in German.
class CommaNumbers : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

void set_locale() {
  if (std::getenv("WEFT_LOCALE") != nullptr) {
    std::setlocale(LC_ALL, "de_DE.UTF-8"); // Where it is installed.
    std::locale::global(std::locale(std::locale(), new CommaNumbers));
  }
}

} // namespace
} // namespace weft::test

int main(int argc, char** argv) {
  weft::test::set_locale();
  weft::test::set_delay();
  weft::base::end_process(weft::cli::main(argc, argv, {weft::test::faulty()}));
}
