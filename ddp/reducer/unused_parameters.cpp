#include "ddp/reducer/unused_parameters.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include "base/string_streams.h"
#include "data_parallel/parameters/parameter_owners.h"

namespace weft::ddp {
namespace {

using torch::autograd::Node;

// This is a shared_ptr up to torch 2.13 and an intrusive_ptr in later versions.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(
    std::declval<const at::Tensor&>()));

bool contains(const std::vector<size_t>& places, size_t place) {
  return std::find(places.begin(), places.end(), place) != places.end();
}

} // namespace

struct UnusedParameters::State {
  // Keeps the accumulators alive, because a leaf refers to its own weakly.
  // Otherwise nodes of another graph could reuse the addresses.
  std::vector<NodePointer> accumulators;
  std::unordered_map<const Node*, size_t> places;
};

UnusedParameters::UnusedParameters(const std::vector<at::Tensor>& parameters)
    : state_(std::make_unique<State>()) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(parameters[i]);
    state_->places.emplace(node.get(), i);
    state_->accumulators.push_back(std::move(node));
  }
}

UnusedParameters::~UnusedParameters() = default;

std::vector<size_t> UnusedParameters::find(
    const std::vector<at::Tensor>& outputs) const {
  std::vector<bool> is_used(state_->accumulators.size(), false);
  size_t missing = state_->places.size();
  std::unordered_set<const Node*> seen;
  seen.reserve(8 * is_used.size());
  std::vector<const Node*> to_visit;
  const auto reach = [&](const Node* node) {
    if (node && seen.insert(node).second) {
      to_visit.push_back(node);
    }
  };
  for (const auto& output : outputs) {
    if (output.defined() && output.requires_grad()) {
      reach(torch::autograd::impl::gradient_edge(output).function.get());
    }
  }
  while (!to_visit.empty() && missing > 0) {
    const Node* node = to_visit.back();
    to_visit.pop_back();
    const auto& edges = node->next_edges();
    if (edges.empty()) { // Accumulators have no next edges.
      if (const auto found = state_->places.find(node);
          found != state_->places.end()) {
        is_used[found->second] = true;
        --missing;
      }
      continue;
    }
    for (const auto& edge : edges) {
      reach(edge.function.get());
    }
  }
  std::vector<size_t> unused;
  for (size_t i = 0; i < is_used.size(); ++i) {
    if (!is_used[i]) {
      unused.push_back(i);
    }
  }
  return unused;
}

std::vector<size_t> find_unused(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& parameters) {
  return UnusedParameters(parameters).find(outputs);
}

namespace {

/// Returns e.g. "layers.1.gate (Linear)", or all modules that share the
/// parameter.
std::string heading_of(const std::vector<data_parallel::Owner>& owners) {
  std::string heading;
  for (const auto& owner : owners) {
    heading += (heading.empty() ? "" : ", ") + describe(owner);
  }
  if (owners.empty()) {
    return "no module";
  }
  return owners.size() > 1 ? heading + ": tied" : heading;
}

std::string names_of(
    const data_parallel::NamedTensor& parameter,
    const std::vector<data_parallel::Owner>& owners) {
  if (owners.empty()) {
    return parameter.name;
  }
  std::string names;
  for (const auto& owner : owners) {
    if (names != owner.name) { // Modules may share a name, e.g. "weight".
      names += (names.empty() ? "" : " = ") + owner.name;
    }
  }
  return names;
}

std::string reason_of(const GradientUse& use, size_t place) {
  if (!use.not_in_graph) {
    return "";
  }
  return contains(*use.not_in_graph, place)
             ? "no output depends on it; "
             : "an output depends on it, but the loss does not; ";
}

std::string last_gradient_of(const GradientUse& use, size_t place) {
  if (place >= use.last_gradient.size() || !use.last_gradient[place]) {
    return "never";
  }
  return "iteration " + std::to_string(*use.last_gradient[place]);
}

} // namespace

std::string describe_unused(
    const torch::nn::Module& module,
    const std::vector<data_parallel::NamedTensor>& parameters,
    const GradientUse& use) {
  if (use.without_gradient.empty()) {
    return "";
  }
  const data_parallel::ParameterOwners owners(module);
  std::vector<std::string> headings;
  std::unordered_map<std::string, std::string> lines;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!contains(use.without_gradient, i)) {
      continue;
    }
    const auto& own = owners.of(parameters[i].tensor);
    auto heading = heading_of(own);
    base::StringWriter line;
    line << "    " << names_of(parameters[i], own) << ' '
         << parameters[i].tensor.sizes() << ": " << reason_of(use, i)
         << "last gradient: " << last_gradient_of(use, i) << '\n';
    if (lines[heading].empty()) {
      headings.push_back(heading);
    }
    lines[heading] += line.str();
  }
  base::StringWriter text;
  text << use.without_gradient.size() << " of " << parameters.size()
       << " parameters got no gradient in iteration " << use.iteration << '\n';
  for (const auto& heading : headings) {
    text << "  " << heading << '\n' << lines[heading];
  }
  return text.str();
}

} // namespace weft::ddp
