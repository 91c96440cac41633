#include "train/health/non_finite.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "data_parallel/parameters/module_state.h"
#include "mesh/communicator/exchange.h"
#include "mesh/communicator/format.h"
#include "mesh/error/error.h"

namespace weft::train {
namespace {

using Kind = NonFiniteFinding::Kind;

at::Tensor part_of(const at::Tensor& tensor) {
  const auto local = data_parallel::local_part(tensor);
  return local.is_sparse() ? local._values() : local;
}

double sum_of_part(const at::Tensor& tensor) {
  const auto part = part_of(tensor);
  return part.is_floating_point() ? part.sum().item<double>() : 0;
}

// Returns the largest magnitude in the local tensor, or NaN if it contains one.
double largest(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return 0;
  }
  const auto part = part_of(tensor);
  return part.numel() == 0 ? 0 : part.abs().max().item<double>();
}

double norm_of_part(const at::Tensor& tensor) {
  return at::linalg_vector_norm(
             part_of(tensor),
             2,
             /*dim=*/std::nullopt,
             /*keepdim=*/false,
             at::kFloat)
      .item<double>();
}

std::string number_text(double value) {
  // The sign of a NaN has no meaning.
  return std::isnan(value) ? "nan" : fmt::format("{:.4g}", value);
}

// The parameters by name, with their positions counted from the loss. Backward
// computes the gradients of the last parameters first.
class DistanceFromLoss {
 public:
  explicit DistanceFromLoss(const torch::nn::Module& module) {
    for (const auto& item : module.named_parameters()) {
      names_.push_back(item.key());
      tensors_.emplace(item.key(), item.value());
    }
    std::ranges::reverse(names_);
    for (size_t i = 0; i < names_.size(); ++i) {
      orders_.emplace(names_[i], static_cast<double>(i));
    }
  }

  const std::vector<std::string>& names() const { return names_; }
  const at::Tensor& tensor(const std::string& name) const {
    return tensors_.at(name);
  }
  double order(const std::string& name) const { return orders_.at(name); }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    for (const auto& name : names_) {
      all.push_back(tensors_.at(name));
    }
    return all;
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, double> orders_;
};

std::optional<NonFiniteFinding> find_weight(
    const DistanceFromLoss& parameters) {
  for (const auto& name : parameters.names()) {
    const double value = largest(parameters.tensor(name));
    if (!std::isfinite(value)) {
      return NonFiniteFinding{
          .kind = Kind::kWeight,
          .order = parameters.order(name),
          .what =
              fmt::format("the weight {} holds {}", name, number_text(value))};
    }
  }
  return std::nullopt;
}

std::optional<NonFiniteFinding> find_loss(
    const std::vector<MicroLoss>& losses) {
  for (const auto& each : losses) {
    if (!std::isfinite(each.loss)) {
      return NonFiniteFinding{
          .kind = Kind::kLoss,
          .order = static_cast<double>(each.first_sample),
          .what = fmt::format(
              "the loss of samples {} to {} is {}",
              each.first_sample,
              each.first_sample + each.samples - 1,
              number_text(each.loss))};
    }
  }
  return std::nullopt;
}

// Returns the parameter with a non-finite gradient that is nearest to the loss,
// of those that were reduced together. If all gradients are finite, returns the
// one with the largest magnitude.
NonFiniteFinding worst_gradient(
    const DistanceFromLoss& parameters,
    const std::vector<std::string>& names) {
  std::vector<std::tuple<bool, double, std::string>> found;
  for (const auto& name : names) {
    const double value = largest(parameters.tensor(name).grad());
    const bool is_finite = std::isfinite(value);
    found.emplace_back(
        is_finite, is_finite ? -value : parameters.order(name), name);
  }
  const auto& [is_finite, unused, name] = *std::ranges::min_element(found);
  return {
      .kind = Kind::kGradient,
      .order = parameters.order(name),
      .what = fmt::format(
          "the gradient of {} {} {}{}",
          name,
          is_finite ? "reaches" : "is",
          number_text(largest(parameters.tensor(name).grad())),
          is_finite ? ", too large for a norm," : "")};
}

// Returns the norms of this rank's own gradients: buckets before their
// reduction, and gradients that are not reduced.
std::vector<ddp::LocalNorm> own_gradients(const DistanceFromLoss& parameters) {
  auto norms = ddp::local_norms(parameters.tensors());
  std::set<std::string> reduced;
  for (auto& norm : norms) {
    reduced.insert(norm.parameters.begin(), norm.parameters.end());
  }
  for (const auto& name : parameters.names()) {
    const auto& grad = parameters.tensor(name).grad();
    if (grad.defined() && !reduced.contains(name)) {
      norms.push_back({.parameters = {name}, .norm = norm_of_part(grad)});
    }
  }
  return norms;
}

NonFiniteFinding find_gradient(
    const DistanceFromLoss& parameters,
    const std::vector<ddp::LocalNorm>& earlier_norms) {
  auto own = own_gradients(parameters);
  own.insert(own.end(), earlier_norms.begin(), earlier_norms.end());
  NonFiniteFinding first;
  for (const auto& norm : own) {
    if (!std::isfinite(norm.norm)) {
      const auto found = worst_gradient(parameters, norm.parameters);
      if (first.kind == Kind::kNothing || found.order < first.order) {
        first = found;
      }
    }
  }
  if (first.kind != Kind::kNothing || own.empty()) {
    return first;
  }
  const auto& most = *std::ranges::max_element(own, {}, &ddp::LocalNorm::norm);
  const auto& name = *std::ranges::max_element(
      most.parameters, {}, [&](const std::string& each) {
        return largest(parameters.tensor(each).grad());
      });
  return {
      .kind = Kind::kNorm,
      .order = -most.norm,
      .what = fmt::format(
          "the norm of the gradients overflows; the largest one of a rank, "
          "{}, with {}, is",
          number_text(most.norm),
          name)};
}

std::string finding_to_text(const NonFiniteFinding& finding) {
  return base::strict_json_text(nlohmann::json{
      static_cast<int>(finding.kind), finding.order, finding.what});
}

NonFiniteFinding finding_from_text(const std::string& text) {
  const auto json = base::parse_json(text);
  return {
      .kind = static_cast<Kind>(json.at(0).get<int>()),
      .order = json.at(1),
      .what = json.at(2)};
}

} // namespace

NonFiniteFinding find_non_finite(
    const torch::nn::Module& module,
    const std::vector<MicroLoss>& losses,
    const std::vector<ddp::LocalNorm>& earlier_norms) {
  const at::NoGradGuard no_grad;
  const DistanceFromLoss parameters(module);
  if (auto weight = find_weight(parameters)) {
    return *std::move(weight);
  }
  if (auto loss = find_loss(losses)) {
    return *std::move(loss);
  }
  return find_gradient(parameters, earlier_norms);
}

bool are_weights_finite(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  const auto parameters = module.parameters();
  return std::ranges::all_of(parameters, [](const auto& parameter) {
    // The sum of finite numbers may overflow.
    return std::isfinite(sum_of_part(parameter)) ||
           std::isfinite(largest(parameter));
  });
}

void throw_non_finite_weights(int64_t step, const std::string& reason) {
  mesh::throw_error<NonFiniteError>(fmt::format(
      "step {}: {} after the update. The step was not saved. Lower "
      "optimizer.lr or optimizer.weight_decay, and run the same command again: "
      "it resumes from the newest checkpoint.",
      step,
      reason));
}

NonFiniteCause explain_non_finite(
    const std::vector<NonFiniteFinding>& findings) {
  const auto& first =
      *std::ranges::min_element(findings, {}, [](const auto& finding) {
        return std::tuple(finding.kind, finding.order);
      });
  if (first.kind == Kind::kNothing) {
    return {"the loss or the norm of the gradients is not finite"};
  }
  std::vector<int64_t> ranks;
  for (size_t rank = 0; rank < findings.size(); ++rank) {
    if (findings[rank] == first) {
      ranks.push_back(static_cast<int64_t>(rank));
    }
  }
  return {
      .text = fmt::format("{} on {}", first.what, mesh::ranks_text(ranks)),
      .is_weight = first.kind == Kind::kWeight};
}

NonFiniteCause explain_non_finite(
    mesh::Communicator& world,
    const NonFiniteFinding& own) {
  std::vector<NonFiniteFinding> findings;
  for (const auto& text : mesh::all_gather_text(
           world, finding_to_text(own), "what is not finite")) {
    findings.push_back(finding_from_text(text));
  }
  return explain_non_finite(findings);
}

std::string NonFinitePolicy::on_non_finite(
    int64_t step,
    const NonFiniteCause& cause) {
  const auto& reason = cause.text;
  if (cause.is_weight) {
    mesh::throw_error<NonFiniteError>(fmt::format(
        "step {}: {}. {}",
        step,
        reason,
        has_updated_
            ? "An earlier update made it so. Lower optimizer.lr or "
              "optimizer.weight_decay, and run the same command again: it "
              "resumes from the newest checkpoint."
            : "It did before the first update. Start from finite weights: see "
              "model.from, checkpoint.init_from or the checkpoint that was "
              "resumed."));
  }
  if (config_.on_non_finite == config::OnNonFinite::kStop) {
    mesh::throw_error<NonFiniteError>(fmt::format(
        "step {}: {}. The weights were not updated. Lower optimizer.lr, check "
        "the data of that step, or skip such steps with "
        "train.on_non_finite=skip.",
        step,
        reason));
  }
  if (streak_ >= config_.max_consecutive_non_finite) {
    mesh::throw_error<NonFiniteError>(fmt::format(
        "step {}: {}. The weights were not updated, as in the previous {}. The "
        "run ends because of train.max_consecutive_non_finite={}. Lower "
        "optimizer.lr, or check the data of those steps.",
        step,
        reason,
        streak_ == 1 ? "step" : fmt::format("{} steps", streak_),
        config_.max_consecutive_non_finite));
  }
  ++streak_;
  return fmt::format(
      "step {} skipped, {} in a row of at most {}: {}",
      step,
      streak_,
      config_.max_consecutive_non_finite,
      reason);
}

} // namespace weft::train
