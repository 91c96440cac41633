#include "tests/ddp/join/join_reference.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "tests/ddp/join/join_training.h"

namespace weft::test {
namespace {

using Ranks = std::vector<size_t>;

/// A replica, and how far it has come.
struct JoinReplica {
  std::shared_ptr<OptionModel> model;
  std::shared_ptr<OptionModel> low;
  NamedTensors parameters;
  NamedTensors low_parameters;
  std::unique_ptr<torch::optim::SGD> optimizer;
  int64_t next = 0;
  /// Rows and inputs of the iteration under way.
  int64_t samples = 0;
  int64_t inputs = 0;
};

/// All replicas on one rank. An iteration is what PyTorch calls one: up to the
/// optimizer's step.
class JoinByHand {
 public:
  explicit JoinByHand(const JoinRun& run) : run_(run), setup_(run.setup()) {
    for (int64_t rank = 0; rank < run.dp(); ++rank) {
      const at::NoGradGuard no_grad;
      auto model = make_replica(setup_, rank);
      auto low = make_low_replica(setup_, rank, model);
      auto parameters = unique_parameters(*model);
      auto optimizer = std::make_unique<torch::optim::SGD>(
          tensors_of(parameters), option_sgd());
      replicas_.push_back(
          {model,
           low,
           std::move(parameters),
           unique_parameters(*low),
           std::move(optimizer)});
      all_.push_back(static_cast<size_t>(rank));
    }
    if (setup_.options.init_sync) {
      // As long as nobody has trained all are alike.
      share(all_, all_, /*is_at_end=*/false);
    }
    last_ = all_;
  }

  std::vector<OptionTrace> train() {
    for (auto active = with_inputs(all_); !active.empty();
         active = with_inputs(all_)) {
      run_iteration(active);
    }
    share(last_, all_, /*is_at_end=*/true);
    std::vector<OptionTrace> traces;
    for (auto& replica : replicas_) {
      replica.optimizer->zero_grad(/*set_to_none=*/true);
      traces.push_back(trace_of(*replica.model, {}));
      traces.back().buffers = buffers_of(*replica.low);
      traces.back().gradients.clear();
    }
    return traces;
  }

 private:
  /// Returns the ranks with inputs.
  Ranks with_inputs(const Ranks& ranks) const {
    Ranks found;
    std::copy_if(
        ranks.begin(), ranks.end(), std::back_inserter(found), [&](size_t r) {
          return replicas_[r].next < run_.counts[r];
        });
    return found;
  }

  void run_iteration(const Ranks& active) {
    for (const auto rank : active) {
      auto& replica = replicas_[rank];
      replica.samples = 0;
      replica.inputs = 0;
      load_parameters(*replica.model, *replica.low);
    }
    for (int64_t i = 0; i < setup_.micro; ++i) {
      const auto left = with_inputs(active);
      if (!left.empty() && setup_.synchronizes_buffers() && was_reduced_) {
        copy_buffers(left.front(), all_);
      }
      was_reduced_ = setup_.joint || i + 1 == setup_.micro;
      for (const auto rank : left) {
        add_gradients(rank);
      }
    }
    Ranks completed;
    for (const auto rank : active) {
      if (replicas_[rank].inputs == setup_.micro) {
        completed.push_back(rank);
      }
    }
    if (completed.empty()) {
      return; // nobody is left to reduce them
    }
    reduce(active, completed);
    for (const auto rank : completed) {
      step(replicas_[rank]);
    }
    last_ = completed;
    for (const auto rank : completed) {
      last_of_experts_[rank / 2] = {};
    }
    for (const auto rank : completed) {
      last_of_experts_[rank / 2].push_back(rank);
    }
  }

  void add_gradients(size_t rank) {
    auto& replica = replicas_[rank];
    const auto own = static_cast<int64_t>(rank);
    auto x = join_inputs(setup_, own, replica.next);
    const auto& mixed = setup_.options.mixed_precision;
    if (mixed && mixed->param_dtype && x.is_floating_point()) {
      x = x.to(*mixed->param_dtype);
    }
    replica.low->kind = setup_.kind(own, replica.next);
    const auto loss = option_loss(replica.low->forward(x)) /
                      static_cast<double>(setup_.micro);
    loss.backward();
    replica.samples += x.size(0);
    ++replica.inputs;
    ++replica.next;
  }

  /// Over which a parameter's gradient is reduced.
  Ranks group_of(const std::string& name, size_t rank) const {
    if (!setup_.is_expert(name)) {
      return all_;
    }
    return {rank / 2 * 2, rank / 2 * 2 + 1};
  }

  /// What the gradient of one replica counts in the sum over `group`, of which
  /// `active` have inputs.
  double weight(size_t rank, const Ranks& group, const Ranks& active) const {
    int64_t samples = 0;
    for (const auto each : active) {
      samples += replicas_[each].samples;
    }
    switch (run_.division) {
      case Division::kInitial:
        return 1.0 / static_cast<double>(group.size());
      case Division::kEffective:
        return 1.0 / static_cast<double>(active.size());
      case Division::kSamples:
        return static_cast<double>(replicas_[rank].samples) /
               static_cast<double>(samples);
    }
    return 0;
  }

  at::ScalarType reduce_dtype(at::ScalarType own) const {
    const auto& mixed = setup_.options.mixed_precision;
    return mixed ? mixed->reduce_dtype.value_or(own) : own;
  }

  /// The gradient of parameter `p` for replica `rank`; undefined if none has.
  at::Tensor reduced(size_t p, const Ranks& group, const Ranks& active) {
    Ranks members;
    std::set_intersection(
        group.begin(),
        group.end(),
        active.begin(),
        active.end(),
        std::back_inserter(members));
    at::Tensor sum;
    for (const auto rank : members) {
      const auto gradient = replicas_[rank].low_parameters[p].second.grad();
      if (gradient.defined()) {
        const auto part = gradient.to(reduce_dtype(gradient.scalar_type())) *
                          weight(rank, group, members);
        sum = sum.defined() ? sum + part : part;
      }
    }
    return sum.defined() ? sum.to_dense().to(setup_.dtype) : sum;
  }

  void reduce(const Ranks& active, const Ranks& completed) {
    const auto& names = replicas_[0].parameters;
    std::vector<std::vector<at::Tensor>> gradients(replicas_.size());
    for (const auto rank : completed) {
      for (size_t p = 0; p < names.size(); ++p) {
        const auto& name = names[p].first;
        const auto own = replicas_[rank].low_parameters[p].second.grad();
        gradients[rank].push_back(
            setup_.is_ignored(name) ? own
                                    : reduced(p, group_of(name, rank), active));
      }
    }
    for (const auto rank : completed) {
      const auto& parameters = replicas_[rank].parameters;
      for (size_t p = 0; p < names.size(); ++p) {
        const auto& gradient = gradients[rank][p];
        parameters[p].second.mutable_grad() =
            gradient.defined() ? gradient.clone() : gradient;
      }
    }
  }

  void step(JoinReplica& replica) const {
    if (setup_.max_norm) {
      torch::nn::utils::clip_grad_norm_(
          tensors_of(replica.parameters), *setup_.max_norm);
    }
    replica.optimizer->step();
    replica.optimizer->zero_grad(/*set_to_none=*/!setup_.zero);
  }

  void copy(const NamedTensors& from, const NamedTensors& to) const {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < from.size(); ++i) {
      if (!setup_.is_ignored(from[i].first)) {
        to[i].second.copy_(from[i].second);
      }
    }
  }

  static NamedTensors named_buffers(const JoinReplica& replica) {
    NamedTensors buffers;
    for (const auto& buffer : replica.low->named_buffers()) {
      buffers.emplace_back(buffer.key(), buffer.value());
    }
    return buffers;
  }

  void copy_buffers(size_t from, const Ranks& to) {
    for (const auto rank : to) {
      copy(named_buffers(replicas_[from]), named_buffers(replicas_[rank]));
    }
  }

  /// Parameters and buffers of the first of `from`; experts of the first of
  /// their own group.
  void share(const Ranks& from, const Ranks& to, bool is_at_end) {
    if (setup_.synchronizes_buffers()) {
      copy_buffers(from.front(), to);
    }
    for (const auto rank : to) {
      for (auto& [name, tensor] : replicas_[rank].parameters) {
        auto source = from.front();
        if (setup_.is_expert(name)) {
          const auto& own = last_of_experts_[rank / 2];
          source = is_at_end && !own.empty() ? own.front() : rank / 2 * 2;
        }
        for (const auto& [key, value] : replicas_[source].parameters) {
          if (key == name) {
            copy({{key, value}}, {{name, tensor}});
          }
        }
      }
    }
  }

  const JoinRun& run_;
  JoinSetup setup_;
  std::vector<JoinReplica> replicas_;
  Ranks all_;
  /// The ranks of the last reduction.
  Ranks last_;
  std::vector<Ranks> last_of_experts_ = std::vector<Ranks>(2);
  /// The forward before was to be reduced.
  bool was_reduced_ = true;
};

const nlohmann::json& stored_joins() {
  static const auto all = nlohmann::json::parse(
      std::ifstream(WEFT_TEST_DDP_FOLDER "/oracle/join.json"));
  return all;
}

NamedTensors named_from(const nlohmann::json& named) {
  NamedTensors result;
  for (const auto& [name, values] : named.items()) {
    result.emplace_back(name, at::tensor(values.get<std::vector<double>>()));
  }
  return result;
}

bool has_part(const std::string& name, const std::string& part) {
  return ("+" + name + "+").find("+" + part + "+") != std::string::npos;
}

bool is_uneven(const JoinRun& run) {
  return std::any_of(run.counts.begin(), run.counts.end(), [&](auto count) {
    return count != run.counts.front();
  });
}

bool is_cut_short(const JoinRun& run) {
  const auto micro = run.setup().micro;
  return std::any_of(run.counts.begin(), run.counts.end(), [&](auto count) {
    return count % micro != 0;
  });
}

} // namespace

std::vector<OptionTrace> train_join_by_hand(const JoinRun& run) {
  return JoinByHand(run).train();
}

PyTorchJoin pytorch_join(const JoinRun& run) {
  const auto& cases = stored_joins().at("cases");
  const auto key = join_text(run.counts, ",") + " " + name_of(run.division);
  if (!cases.contains(run.name) || !cases.at(run.name).contains(key)) {
    return {};
  }
  const auto number = cases.at(run.name).at(key).get<size_t>();
  const auto& result = stored_joins().at("results").at(number);
  PyTorchJoin found;
  found.is_stored = true;
  found.counter = result.value("counter", std::vector<double>());
  if (result.contains("error")) {
    found.error = result.at("error").get<std::string>();
    return found;
  }
  const auto others = result.value("others", nlohmann::json::object());
  for (int64_t rank = 0; rank < run.dp(); ++rank) {
    const auto own =
        others.value(std::to_string(rank), nlohmann::json::object());
    OptionTrace trace;
    for (const auto& [what, tensors] :
         {std::pair{"parameters", &trace.parameters},
          std::pair{"buffers", &trace.buffers}}) {
      auto all = result.at(what);
      all.update(own.value(what, nlohmann::json::object()));
      *tensors = named_from(all);
    }
    found.traces.push_back(std::move(trace));
  }
  return found;
}

std::string difference_from_pytorch(const JoinRun& run) {
  if (is_cut_short(run)) {
    return "PyTorch loses what a rank accumulated before it ran out";
  }
  if (has_part(run.name, "broadcast_buffers")) {
    return "PyTorch takes buffers from the last rank that has inputs";
  }
  if (has_part(run.name, "zero")) {
    return "PyTorch's ranks without inputs step with old gradients";
  }
  if (is_uneven(run) && has_part(run.name, "find_unused_parameters")) {
    return "PyTorch has zeros for some gradients that no rank has";
  }
  if (is_uneven(run) && run.division == Division::kEffective &&
      (run.setup().hook || has_part(run.name, "optimizer_in_backward"))) {
    return "PyTorch's hooks divide by the initial number of replicas";
  }
  if (has_part(run.name, "stacked_hook")) {
    return "PyTorch computes PowerSGD of halves in halves";
  }
  return "";
}

std::vector<std::string> pytorch_join_cases() {
  std::vector<std::string> names;
  for (const auto& [name, runs] : stored_joins().at("cases").items()) {
    names.push_back(name);
  }
  return names;
}

} // namespace weft::test
