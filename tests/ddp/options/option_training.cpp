#include "tests/ddp/options/option_training.h"

#include <memory>
#include <utility>

#include "ddp/distributed_data_parallel.h"
#include "dtensor/tensor/dtensor.h"

namespace weft::test {
namespace {

constexpr int64_t kRows = 2; // of one forward
constexpr double kLearningRate = 0.2;
constexpr double kMomentum = 0.9;

using Model = std::shared_ptr<OptionModel>;

void start_apart(const OptionSetup& setup, OptionModel& model, int64_t rank) {
  for (auto& buffer : model.named_buffers()) {
    const bool is_count = buffer.key().ends_with("num_batches_tracked");
    if (setup.own_buffers && !is_count) {
      buffer.value().add_(0.25 * static_cast<double>(rank));
    }
  }
}

double phase_of(const OptionSetup& setup, int64_t rank) {
  return 0.3 + (setup.own_parameters ? static_cast<double>(rank) : 0.0);
}

/// Rows of forward `i` of a rank; each has `count`.
at::Tensor rows_of(
    const OptionSetup& setup,
    int64_t replicas,
    int64_t rank,
    int64_t step,
    int64_t i,
    int64_t count = kRows) {
  const auto all =
      option_inputs(setup.model, replicas * setup.micro * count, step);
  const auto rows = all.narrow(0, (rank * setup.micro + i) * count, count);
  return rows.is_floating_point() ? rows.to(setup.dtype) : rows;
}

at::Tensor full(const at::Tensor& tensor) {
  const auto whole =
      dtensor::is_dtensor(tensor) ? dtensor::full_tensor(tensor) : tensor;
  return whole.to_dense().to(at::kDouble).clone();
}

bool stays_full(const OptionSetup& setup, const std::string& name) {
  const auto& mixed = *setup.options.mixed_precision;
  return setup.is_ignored(name) ||
         ((mixed.norms_in_full_precision || !mixed.full_precision.empty()) &&
          name.starts_with("bn."));
}

} // namespace

torch::optim::SGDOptions option_sgd() {
  return torch::optim::SGDOptions(kLearningRate).momentum(kMomentum);
}

Model make_replica(const OptionSetup& setup, int64_t rank) {
  auto model = make_option_model(setup.model, phase_of(setup, rank));
  model->to(setup.dtype);
  start_apart(setup, *model, rank);
  return model;
}

Model make_replica(const OptionSetup& setup, const mesh::DeviceMesh& mesh) {
  const auto rank = mesh.coordinate("dp");
  if (mesh.size("tp") == 1) {
    return make_replica(setup, rank);
  }
  auto model =
      make_option_model(setup.model, mesh["tp"], phase_of(setup, rank));
  model->to(setup.dtype);
  const at::NoGradGuard no_grad;
  start_apart(setup, *model, rank);
  return model;
}

Model make_low_replica(
    const OptionSetup& setup,
    int64_t rank,
    const Model& model) {
  const auto& mixed = setup.options.mixed_precision;
  if (!mixed) {
    return model;
  }
  auto low = make_replica(setup, rank);
  for (auto& [name, parameter] : unique_parameters(*low)) {
    if (mixed->param_dtype && !stays_full(setup, name)) {
      parameter.set_data(parameter.to(*mixed->param_dtype));
    }
  }
  for (auto& buffer : low->buffers()) {
    if (mixed->buffer_dtype && buffer.is_floating_point()) {
      buffer.set_data(buffer.to(*mixed->buffer_dtype));
    }
  }
  return low;
}

void load_parameters(const OptionModel& model, OptionModel& low) {
  if (&low == &model) {
    return;
  }
  const at::NoGradGuard no_grad;
  const auto from = unique_parameters(model);
  auto to = unique_parameters(low);
  for (size_t p = 0; p < to.size(); ++p) {
    to[p].second.copy_(from[p].second);
    to[p].second.mutable_grad() = at::Tensor();
  }
}

NamedTensors buffers_of(const OptionModel& model) {
  NamedTensors buffers;
  for (const auto& buffer : model.named_buffers()) {
    buffers.emplace_back(buffer.key(), full(buffer.value()));
  }
  return buffers;
}

OptionTrace trace_of(const OptionModel& model, std::vector<double> losses) {
  OptionTrace trace;
  trace.losses = std::move(losses);
  for (const auto& [name, parameter] : unique_parameters(model)) {
    const auto gradient = parameter.grad();
    trace.parameters.emplace_back(name, full(parameter.detach()));
    trace.gradients.emplace_back(
        name, gradient.defined() ? full(gradient.detach()) : gradient);
  }
  trace.buffers = buffers_of(model);
  return trace;
}

namespace {

/// Calls `backward` on the losses of a step, one by one or on their sum.
class StepLoss {
 public:
  explicit StepLoss(const OptionSetup& setup) : setup_(setup) {}

  void add(const at::Tensor& output, double scale) {
    const auto loss = option_loss(output) / static_cast<double>(setup_.micro);
    value_ += loss.item<double>();
    if (setup_.joint) {
      joint_ = joint_.defined() ? joint_ + loss * scale : loss * scale;
    } else {
      (loss * scale).backward();
    }
  }

  double finish() {
    if (joint_.defined()) {
      joint_.backward();
    }
    return value_;
  }

 private:
  const OptionSetup& setup_;
  double value_ = 0;
  at::Tensor joint_;
};

/// A replica and what it computes with: its own parameters or, with mixed
/// precision, copies in low precision.
struct Replica {
  Model model;
  Model low;
  std::unique_ptr<torch::optim::SGD> optimizer;
  std::vector<double> losses;
};

/// Gradients are averaged where they can be seen, one tensor after the other.
class ReplicasByHand {
 public:
  ReplicasByHand(const OptionSetup& setup, int64_t replicas, int64_t rows)
      : setup_(setup), rows_(rows) {
    for (int64_t rank = 0; rank < replicas; ++rank) {
      const at::NoGradGuard no_grad;
      auto model = make_replica(setup, rank);
      auto optimizer = std::make_unique<torch::optim::SGD>(
          data_parallel::tensors_of(unique_parameters(*model)), option_sgd());
      replicas_.push_back(
          {model,
           make_low_replica(setup, rank, model),
           std::move(optimizer),
           {}});
    }
    if (setup.options.init_sync) {
      copy_from_first([](Replica& r) { return unique_parameters(*r.model); });
      if (setup.options.broadcast_buffers.value_or(true)) {
        copy_buffers();
      }
    }
  }

  std::vector<OptionTrace> train() {
    for (int64_t step = 0; step < kOptionSteps; ++step) {
      run_step(step);
    }
    std::vector<OptionTrace> traces;
    for (auto& replica : replicas_) {
      traces.push_back(trace_of(*replica.model, replica.losses));
      traces.back().buffers = buffers_of(*replica.low);
    }
    return traces;
  }

 private:
  template <class Tensors>
  void copy_from_first(const Tensors& tensors) {
    const at::NoGradGuard no_grad;
    const auto first = tensors(replicas_.front());
    for (auto& replica : replicas_) {
      auto own = tensors(replica);
      for (size_t i = 0; i < own.size(); ++i) {
        if (!setup_.is_ignored(own[i].first)) {
          own[i].second.copy_(first[i].second);
        }
      }
    }
  }

  void copy_buffers() {
    copy_from_first([](Replica& replica) {
      NamedTensors buffers;
      for (const auto& buffer : replica.low->named_buffers()) {
        buffers.emplace_back(buffer.key(), buffer.value());
      }
      return buffers;
    });
  }

  void run_step(int64_t step) {
    std::vector<StepLoss> losses(replicas_.size(), StepLoss(setup_));
    for (auto& replica : replicas_) {
      replica.optimizer->zero_grad(!setup_.zero);
      load_parameters(*replica.model, *replica.low);
    }
    for (int64_t i = 0; i < setup_.micro; ++i) {
      if (setup_.synchronizes_buffers() && was_reduced_) {
        copy_buffers();
      }
      was_reduced_ = !setup_.is_paused(step, i);
      for (size_t rank = 0; rank < replicas_.size(); ++rank) {
        losses[rank].add(forward(rank, step, i), 1.0);
      }
    }
    for (size_t rank = 0; rank < replicas_.size(); ++rank) {
      replicas_[rank].losses.push_back(losses[rank].finish());
    }
    average();
    for (auto& replica : replicas_) {
      replica.optimizer->step();
      if (setup_.optimizer != OptionSetup::Optimizer::kAfterBackward) {
        replica.optimizer->zero_grad(/*set_to_none=*/true);
      }
    }
  }

  at::Tensor forward(size_t rank, int64_t step, int64_t i) {
    const auto own = static_cast<int64_t>(rank);
    const auto count = static_cast<int64_t>(replicas_.size());
    auto x = rows_of(setup_, count, own, step, i, rows_);
    const auto& mixed = setup_.options.mixed_precision;
    if (mixed && mixed->param_dtype) {
      x = x.to(*mixed->param_dtype);
    }
    auto& model = *replicas_[rank].low;
    model.kind = setup_.kind(own, step + i);
    return model.forward(x);
  }

  at::ScalarType reduce_dtype(at::ScalarType own) const {
    const auto& mixed = setup_.options.mixed_precision;
    return mixed ? mixed->reduce_dtype.value_or(own) : own;
  }

  void average() {
    std::vector<NamedTensors> parameters;
    std::vector<NamedTensors> targets;
    for (auto& replica : replicas_) {
      parameters.push_back(unique_parameters(*replica.low));
      targets.push_back(unique_parameters(*replica.model));
    }
    for (size_t p = 0; p < parameters[0].size(); ++p) {
      const bool is_ignored = setup_.is_ignored(parameters[0][p].first);
      at::Tensor sum;
      for (auto& each : parameters) {
        const auto gradient = each[p].second.grad();
        if (gradient.defined()) {
          const auto part = gradient.to(reduce_dtype(gradient.scalar_type())) /
                            static_cast<double>(replicas_.size());
          sum = sum.defined() ? sum + part : part;
        }
      }
      for (size_t rank = 0; rank < replicas_.size(); ++rank) {
        const auto own = parameters[rank][p].second.grad();
        const auto& gradient = is_ignored ? own : sum;
        if (gradient.defined()) {
          targets[rank][p].second.mutable_grad() =
              gradient.to_dense().to(setup_.dtype).clone();
        }
      }
    }
  }

  const OptionSetup& setup_;
  int64_t rows_;
  std::vector<Replica> replicas_;
  /// The forward before was to be reduced: buffers come together once for all
  /// accumulated ones.
  bool was_reduced_ = true;
};

} // namespace

OptionTrace train_with_ddp(
    const OptionSetup& setup,
    const mesh::DeviceMesh& mesh) {
  const auto rank = mesh.coordinate("dp");
  const auto replicas = mesh.size("dp");
  const bool is_cut = mesh.size("tp") > 1;
  const auto model = make_replica(setup, mesh);
  const auto parameters = data_parallel::tensors_of(unique_parameters(*model));
  torch::optim::SGD optimizer(parameters, option_sgd());
  const ddp::OptimizerFactory make_sgd = [](auto some) {
    return std::make_unique<torch::optim::SGD>(std::move(some), option_sgd());
  };
  std::shared_ptr<ddp::OptimizerInBackward> in_backward;
  if (setup.optimizer == OptionSetup::Optimizer::kInBackward) {
    in_backward = ddp::apply_optimizer_in_backward(make_sgd, parameters);
  }
  ddp::DistributedDataParallel<OptionModel> ddp(
      model, mesh["dp"], setup.options);
  if (in_backward) {
    ddp.register_fused_optim(in_backward);
  } else if (setup.optimizer == OptionSetup::Optimizer::kFused) {
    ddp.register_fused_optim(make_sgd);
  }
  if (setup.hook) {
    ddp.register_comm_hook(setup.hook());
  }
  // A sum of losses that are divided by the global count already.
  const double scale = setup.options.reduce_op == mesh::ReduceOp::kSum
                           ? 1.0 / static_cast<double>(replicas)
                           : 1.0;
  const auto forward = [&](int64_t step, int64_t i) {
    auto x = rows_of(setup, replicas, rank, step, i);
    const auto& mixed = setup.options.mixed_precision;
    if (mixed && !mixed->cast_forward_inputs && mixed->param_dtype) {
      x = x.to(*mixed->param_dtype);
    }
    model->kind = setup.kind(rank, step + i);
    return ddp(is_cut ? place_option_inputs(setup.model, x, mesh["tp"]) : x);
  };
  std::vector<double> losses;
  for (int64_t step = 0; step < kOptionSteps; ++step) {
    optimizer.zero_grad(/*set_to_none=*/!setup.zero);
    StepLoss loss(setup);
    for (int64_t i = 0; i < setup.micro; ++i) {
      if (setup.is_paused(step, i)) {
        const auto guard = ddp.no_sync();
        loss.add(forward(step, i), scale);
      } else {
        loss.add(forward(step, i), scale);
      }
    }
    losses.push_back(loss.finish());
    optimizer.step();
  }
  return trace_of(*model, std::move(losses));
}

std::vector<OptionTrace> train_replicas_by_hand(
    const OptionSetup& setup,
    int64_t replicas) {
  ReplicasByHand all(setup, replicas, kRows);
  return all.train();
}

OptionTrace train_on_whole_batch(const OptionSetup& setup, int64_t replicas) {
  OptionSetup alone;
  alone.model = setup.model;
  alone.optimizer = setup.optimizer;
  alone.zero = setup.zero;
  ReplicasByHand one(alone, 1, replicas * setup.micro * kRows);
  return one.train().at(0);
}

} // namespace weft::test
