#include "tests/ddp/options/option_models.h"

#include <map>
#include <set>

#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/parameter_info.h"
#include "tests/ddp/models.h"

namespace weft::test {
namespace {

using dtensor::Placement;
using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;
using torch::nn::Linear;

struct OptionMlp : OptionModel {
  at::Tensor forward(const at::Tensor& x) override {
    return c(at::tanh(b(at::tanh(a(x)))));
  }
  Linear a = register_module("a", Linear(4, 6));
  Linear b = register_module("b", Linear(6, 4));
  Linear c = register_module("c", Linear(4, 2));
};

struct OptionNorm : OptionModel {
  at::Tensor forward(const at::Tensor& x) override {
    return c(at::tanh(bn(b(at::tanh(a(x.flatten(0, 1)))))));
  }
  Linear a = register_module("a", Linear(4, 6));
  Linear b = register_module("b", Linear(6, 4));
  torch::nn::BatchNorm1d bn = register_module("bn", torch::nn::BatchNorm1d(4));
  Linear c = register_module("c", Linear(4, 2));
};

struct OptionEmbedding : OptionModel {
  explicit OptionEmbedding(bool sparse)
      : table(register_module(
            "table",
            torch::nn::Embedding(
                torch::nn::EmbeddingOptions(kVocabulary, 4).sparse(sparse)))),
        a(register_module("a", Linear(4, 6))),
        b(register_module("b", Linear(6, 4))) {}
  at::Tensor forward(const at::Tensor& x) override {
    return b(at::tanh(a(table(x))));
  }
  torch::nn::Embedding table;
  Linear a, b;
};

/// Kind 0 leaves `right` unused, 1 `left`; `never` is in no graph.
struct OptionBranches : OptionModel {
  at::Tensor forward(const at::Tensor& input) override {
    const auto x = at::tanh(first(input));
    if (kind == 0) {
      return head(at::tanh(left(x)));
    }
    if (kind == 1) {
      return head(at::tanh(right(x)));
    }
    const auto y = at::tanh(left(x));
    return head(y * right(x));
  }
  Linear first = register_module("first", Linear(4, 6));
  Linear never = register_module("never", Linear(2, 2));
  Linear left = register_module("left", Linear(6, 4));
  Linear right = register_module("right", Linear(6, 4));
  Linear head = register_module("head", Linear(4, 2));
};

/// `inner` is used three times.
struct OptionReused : OptionModel {
  at::Tensor block(const at::Tensor& x) { return at::tanh(inner(x)); }
  at::Tensor forward(const at::Tensor& x) override {
    return last(block(block(block(first(x)))));
  }
  Linear first = register_module("first", Linear(4, 4));
  Linear inner = register_module("inner", Linear(4, 4));
  Linear last = register_module("last", Linear(4, 2));
};

/// `inner` is used in two nested backward passes, as re-entrant checkpointing
/// runs them, and outside of them.
struct OptionCheckpointed : OptionReused {
  struct Checkpoint : torch::autograd::Function<Checkpoint> {
    static at::Tensor forward(
        torch::autograd::AutogradContext* context,
        const at::Tensor& x,
        OptionCheckpointed* self) {
      context->save_for_backward({x});
      context->saved_data["self"] = reinterpret_cast<int64_t>(self);
      return self->block(x);
    }
    static torch::autograd::variable_list backward(
        torch::autograd::AutogradContext* context,
        const torch::autograd::variable_list& gradients) {
      auto* self = reinterpret_cast<OptionCheckpointed*>(
          context->saved_data["self"].toInt());
      const at::AutoGradMode grad(true);
      auto x = context->get_saved_variables()[0].detach().requires_grad_();
      self->block(x).backward(gradients[0]);
      return {x.grad(), at::Tensor()};
    }
  };
  at::Tensor forward(const at::Tensor& input) override {
    auto x = first(input);
    for (int i = 0; i < 2; ++i) {
      x = Checkpoint::apply(x, this);
    }
    return last(block(x));
  }
};

/// One weight at two places.
struct OptionTied : OptionModel {
  struct Second : torch::nn::Module {
    explicit Second(const at::Tensor& shared)
        : weight(register_parameter("weight", shared)),
          bias(register_parameter("bias", at::zeros({4}))) {}
    at::Tensor weight, bias;
  };
  at::Tensor forward(const at::Tensor& x) override {
    const auto hidden = at::tanh(first(x));
    return head(at::linear(hidden, second->weight, second->bias));
  }
  Linear first = register_module("first", Linear(4, 4));
  std::shared_ptr<Second> second =
      register_module("second", std::make_shared<Second>(first->weight));
  Linear head = register_module("head", Linear(4, 2));
};

std::shared_ptr<OptionModel> construct(const std::string& name) {
  std::shared_ptr<OptionModel> model;
  if (name == "mlp") {
    model = std::make_shared<OptionMlp>();
  } else if (name == "norm") {
    model = std::make_shared<OptionNorm>();
  } else if (name == "embedding" || name == "sparse_embedding") {
    model = std::make_shared<OptionEmbedding>(name == "sparse_embedding");
  } else if (name == "branches") {
    model = std::make_shared<OptionBranches>();
  } else if (name == "reused") {
    model = std::make_shared<OptionReused>();
  } else if (name == "checkpointed") {
    model = std::make_shared<OptionCheckpointed>();
  } else if (name == "tied") {
    model = std::make_shared<OptionTied>();
  } else {
    throw std::invalid_argument("no model is called " + name);
  }
  model->to(at::kDouble);
  return model;
}

/// Parameters that are cut; the second member is the placement of the linear's
/// output, if it is not left to the op.
std::map<std::string, Placement> cuts_of(const std::string& name) {
  if (name == "tied") {
    return {{"first.weight", Shard(0)}, {"first.bias", Shard(0)}};
  }
  if (name == "reused" || name == "checkpointed") {
    return {{"inner.weight", Shard(0)}, {"inner.bias", Shard(0)}};
  }
  if (name == "branches") {
    return {
        {"first.weight", Shard(0)},
        {"first.bias", Shard(0)},
        {"left.weight", Shard(1)},
        {"right.weight", Shard(1)}};
  }
  return {{"a.weight", Shard(0)}, {"a.bias", Shard(0)}, {"b.weight", Shard(1)}};
}

/// Batch norm and look-ups get all rows' positions on each rank.
bool cuts_sequence(const std::string& name) {
  return name == "mlp" || name == "branches";
}

} // namespace

std::shared_ptr<OptionModel> make_option_model(
    const std::string& name,
    double phase) {
  auto model = construct(name);
  const at::NoGradGuard no_grad;
  for (auto& [key, parameter] : unique_parameters(*model)) {
    parameter.copy_(wave(parameter.sizes(), phase) * 0.5);
    phase += 1.0;
  }
  return model;
}

std::shared_ptr<OptionModel> make_option_model(
    const std::string& name,
    const mesh::DeviceMesh& tp,
    double phase) {
  std::shared_ptr<OptionModel> model;
  {
    const dtensor::DeferredInit scope;
    model = construct(name);
  }
  const auto cuts = cuts_of(name);
  for (const auto& [key, parameter] : unique_parameters(*model)) {
    const auto cut = cuts.find(key);
    const Placement where = cut == cuts.end() ? Replicate() : cut->second;
    dtensor::set_placements(parameter, tp, {where});
    if (where == Shard(1) && cuts_sequence(name)) {
      dtensor::parameter_info(parameter).linear.output = Placements{Shard(1)};
    }
  }
  for (const auto& buffer : model->buffers()) {
    dtensor::set_placements(buffer, tp, {Replicate()});
  }
  dtensor::materialize(*model, /*seed=*/1);
  const auto values = unique_parameters(*make_option_model(name, phase));
  const auto parameters = unique_parameters(*model);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < values.size(); ++i) {
    parameters[i].second.copy_(dtensor::distribute_tensor(
        values[i].second.detach(),
        tp,
        dtensor::spec_of(parameters[i].second).placements(),
        std::nullopt));
  }
  return model;
}

at::Tensor option_inputs(const std::string& model, int64_t rows, int64_t step) {
  if (model == "embedding" || model == "sparse_embedding") {
    return ((at::arange(rows * 2) * 7 + step) % kVocabulary).view({rows, 2});
  }
  return wave({rows, 2, 4}, 0.1 + static_cast<double>(step));
}

at::Tensor place_option_inputs(
    const std::string& model,
    const at::Tensor& rows,
    const mesh::DeviceMesh& tp) {
  const Placement where =
      cuts_sequence(model) ? Placement(Shard(1)) : Placement(Replicate());
  return dtensor::distribute_tensor(rows, tp, {where}, std::nullopt);
}

bool treats_rows_alone(const std::string& model) {
  return model != "norm" && model != "branches";
}

NamedTensors unique_parameters(const torch::nn::Module& module) {
  NamedTensors result;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.emplace_back(item.key(), item.value());
    }
  }
  return result;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) {
    tensors.push_back(tensor);
  }
  return tensors;
}

at::Tensor option_loss(const at::Tensor& output) {
  const auto loss = output.to(at::kDouble).pow(2).mean();
  return dtensor::is_dtensor(loss) ? dtensor::full_tensor(loss) : loss;
}

} // namespace weft::test
