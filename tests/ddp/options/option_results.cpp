// What PyTorch computed, and how results are compared.
#include <algorithm>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/ddp/options/option_training.h"

namespace weft::test {
namespace {

using nlohmann::json;

const json& stored() {
  static const json all = json::parse(
      std::ifstream(WEFT_TEST_DDP_FOLDER "/oracle/ddp_options.json"));
  return all;
}

NamedTensors tensors_from(const json& named) {
  NamedTensors result;
  for (const auto& [name, values] : named.items()) {
    result.emplace_back(
        name,
        values.is_null() ? at::Tensor()
                         : at::tensor(values.get<std::vector<double>>()));
  }
  return result;
}

/// A rank's own tensors over the first rank's.
json of_rank(const json& result, size_t rank, const std::string& what) {
  auto tensors = result.at(what);
  const auto others = result.value("others", json::object());
  const auto own = others.value(std::to_string(rank), json::object());
  tensors.update(own.value(what, json::object()));
  return tensors;
}

const at::Tensor* find(const NamedTensors& tensors, const std::string& name) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& each) {
        return each.first == name;
      });
  return found == tensors.end() ? nullptr : &found->second;
}

void expect_close(
    const NamedTensors& actual,
    const NamedTensors& expected,
    double tolerance,
    const std::string& what) {
  EXPECT_EQ(actual.size(), expected.size()) << what;
  for (const auto& [name, value] : expected) {
    const auto* own = find(actual, name);
    if (!own || own->defined() != value.defined()) {
      ADD_FAILURE() << what << " " << name << " is "
                    << (own && own->defined() ? "there" : "missing");
      continue;
    }
    if (value.defined()) {
      ASSERT_EQ(own->numel(), value.numel()) << what << " " << name;
      const auto error =
          (own->flatten() - value.flatten()).abs().max().item<double>();
      EXPECT_LE(error, tolerance) << what << " " << name;
    }
  }
}

} // namespace

std::optional<PyTorchResult> pytorch_result(
    const std::string& name,
    int64_t replicas) {
  const auto& cases = stored().at("cases");
  if (!cases.contains(name)) {
    return std::nullopt;
  }
  const auto number = cases.at(name).at(replicas - 1).get<size_t>();
  const auto& result = stored().at("results").at(number);
  PyTorchResult found;
  found.note = stored().at("notes").value(name, "");
  if (result.contains("error")) {
    found.error = result.at("error").get<std::string>();
  }
  if (!found.error.empty() || !found.note.empty()) {
    return found;
  }
  for (size_t rank = 0; rank < static_cast<size_t>(replicas); ++rank) {
    found.traces.push_back(
        {.losses = result.at("losses").at(rank).get<std::vector<double>>(),
         .parameters = tensors_from(of_rank(result, rank, "parameters")),
         .gradients = tensors_from(of_rank(result, rank, "gradients")),
         .buffers = tensors_from(of_rank(result, rank, "buffers"))});
  }
  return found;
}

std::vector<std::string> pytorch_cases() {
  std::vector<std::string> names;
  for (const auto& [name, numbers] : stored().at("cases").items()) {
    names.push_back(name);
  }
  return names;
}

void expect_traces_close(
    const OptionTrace& actual,
    const OptionTrace& expected,
    double tolerance,
    const std::string& what) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size()) << what;
  for (size_t step = 0; step < actual.losses.size(); ++step) {
    EXPECT_NEAR(actual.losses[step], expected.losses[step], tolerance)
        << what << " loss of step " << step;
  }
  expect_close(
      actual.parameters, expected.parameters, tolerance, what + " parameter");
  expect_close(
      actual.gradients, expected.gradients, tolerance, what + " gradient of");
  expect_close(actual.buffers, expected.buffers, tolerance, what + " buffer");
}

} // namespace weft::test
