#include "tests/dtensor/op_check/dispatch_check.h"

#include <algorithm>
#include <random>

#include <torch/torch.h>

#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "mesh/ledger.h"
#include "tests/dtensor/op_check/parts_of_op.h"
#include "tests/dtensor/parts.h"

namespace weft::dtensor::check {
namespace {

constexpr int64_t kFailuresPerOp = 3;

// ---- one rank's results -----------------------------------------------------

bool wants_gradient(const at::Tensor& tensor) {
  return tensor.defined() &&
         (tensor.is_floating_point() || tensor.is_complex());
}

// A random linear functional of each output that has a gradient.
std::vector<at::Tensor> functionals(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> weights;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() && outputs[i].requires_grad()) {
      weights.push_back(test::random(outputs[i].sizes(), 2000 + i)
                            .to(outputs[i].scalar_type()));
    } else {
      weights.emplace_back();
    }
  }
  return weights;
}

std::vector<at::Tensor> gradients(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& weights,
    const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> of;
  std::vector<at::Tensor> by;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (weights[i].defined()) {
      of.push_back(outputs[i]);
      by.push_back(weights[i]);
    }
  }
  return torch::autograd::grad(
      of,
      inputs,
      by,
      /*retain_graph=*/false,
      /*create_graph=*/false,
      /*allow_unused=*/true);
}

struct Expected {
  std::vector<at::Tensor> outputs;
  /// Empty if the op has no gradient.
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> gradients;
};

std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> list;
  for (const auto& tensor : tensors) {
    if (tensor.requires_grad()) {
      list.push_back(tensor);
    }
  }
  return list;
}

Expected on_one_rank(const Sample& sample) {
  Expected expected{call(sample.op, cloned(sample.arguments)), {}, {}};
  if (is_inplace(sample.op.schema()) || !has_values(sample.op)) {
    return expected;
  }
  const auto arguments =
      map_tensors(sample.arguments, [](const at::Tensor& t, size_t) {
        return t.clone().requires_grad_(wants_gradient(t));
      });
  try {
    const auto outputs = call(sample.op, arguments);
    auto weights = functionals(outputs);
    expected.gradients =
        gradients(outputs, weights, leaves(tensors_of(arguments)));
    expected.weights = std::move(weights);
  } catch (const std::exception&) {
    // No derivative, or none of these inputs.
    expected.gradients.clear();
  }
  return expected;
}

// ---- placements -------------------------------------------------------------

std::vector<Placement> placements_of(const at::Tensor& tensor) {
  std::vector<Placement> list{Replicate()};
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    list.push_back(Shard(d));
  }
  if (tensor.scalar_type() != at::kBool) {
    list.push_back(Partial());
  }
  if (tensor.is_floating_point()) {
    list.push_back(Partial(ReduceOp::kAvg));
    list.push_back(Partial(ReduceOp::kMax));
    list.push_back(Partial(ReduceOp::kMin));
  }
  return list;
}

// All combinations for all tensors and mesh dims, or some of them.
class Combinations {
 public:
  Combinations(
      const std::vector<at::Tensor>& tensors,
      size_t mesh_ndim,
      const DispatchOptions& options)
      : mesh_ndim_(mesh_ndim) {
    for (const auto& tensor : tensors) {
      for (size_t d = 0; d < mesh_ndim; ++d) {
        choices_.push_back(placements_of(tensor));
        total_ = std::min<int64_t>(
            total_ * static_cast<int64_t>(choices_.back().size()), 1 << 20);
      }
    }
    std::mt19937_64 random(options.seed);
    const bool all = total_ <= options.combinations;
    for (int64_t i = 0; i < (all ? total_ : options.combinations); ++i) {
      picked_.push_back(all ? nth(i) : pick(random));
    }
  }

  const std::vector<std::vector<Placements>>& list() const { return picked_; }

 private:
  std::vector<Placements> nth(int64_t index) const {
    return make([&](size_t count) {
      const auto choice = static_cast<size_t>(index) % count;
      index /= static_cast<int64_t>(count);
      return choice;
    });
  }

  std::vector<Placements> pick(std::mt19937_64& random) const {
    return make([&](size_t count) { return random() % count; });
  }

  template <class Choose>
  std::vector<Placements> make(const Choose& choose) const {
    std::vector<Placements> placements(choices_.size() / mesh_ndim_);
    for (size_t i = 0; i < choices_.size(); ++i) {
      placements[i / mesh_ndim_].push_back(
          choices_[i][choose(choices_[i].size())]);
    }
    return placements;
  }

  size_t mesh_ndim_;
  int64_t total_ = 1;
  std::vector<std::vector<Placement>> choices_;
  std::vector<std::vector<Placements>> picked_;
};

// ---- the check --------------------------------------------------------------

class DispatchCheck {
 public:
  DispatchCheck(
      const Sample& sample,
      const std::vector<int64_t>& mesh_shape,
      Report& report)
      : sample_(sample),
        shape_(mesh_shape),
        report_(report),
        tensors_(tensors_of(sample.arguments)),
        expected_(on_one_rank(sample)) {}

  void check(LockstepRanks& ranks, const DispatchOptions& options) {
    const Combinations combinations(tensors_, shape_.size(), options);
    for (const auto& placements : combinations.list()) {
      if (report_.failures_of("dispatch", sample_.name()) >= kFailuresPerOp) {
        return;
      }
      ++report_.cases["dispatch"];
      check_one(ranks, placements);
    }
  }

 private:
  using Parts = std::vector<std::vector<at::Tensor>>;

  void check_one(
      LockstepRanks& ranks,
      const std::vector<Placements>& placements) {
    Parts parts;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      parts.push_back(test::cut_all(tensors_[i], placements[i], shape_));
    }
    std::vector<char> refused(c10::multiply_integers(shape_));
    const auto errors = ranks.run([&](const mesh::DeviceMesh& mesh) {
      refused[mesh.rank()] = run(mesh, placements, parts);
    });
    const bool same = std::ranges::all_of(
        refused, [&](char each) { return each == refused[0]; });
    std::string message = same ? "" : "some ranks refused and others did not";
    for (const auto& error : errors) {
      if (!error.empty() && message.empty()) {
        message = error;
      }
    }
    auto& result = report_.ops[sample_.name()];
    ++result.dispatched;
    result.refused += refused[0];
    if (!message.empty()) {
      report_.fail(
          {"dispatch",
           sample_.name(),
           sample_.where,
           describe(placements),
           message});
    }
  }

  std::string describe(const std::vector<Placements>& placements) const {
    std::string text = sample_.text + " on mesh" + c10::str(shape_) + ":";
    for (const auto& each : placements) {
      text += " " + to_string(each);
    }
    return text;
  }

  // On each rank. True if the op refused, as ops that write may.
  bool run(
      const mesh::DeviceMesh& mesh,
      const std::vector<Placements>& placements,
      const Parts& parts) const {
    const bool graph = !expected_.gradients.empty();
    const auto arguments =
        map_tensors(sample_.arguments, [&](const at::Tensor& whole, size_t i) {
          auto dtensor = make_dtensor(
              parts[i][mesh.rank()].clone(),
              DTensorSpec(mesh, placements[i]),
              whole.sizes(),
              whole.strides());
          return dtensor.requires_grad_(graph && wants_gradient(whole));
        });
    std::vector<at::Tensor> outputs;
    try {
      outputs = call(sample_.op, arguments);
    } catch (const c10::ValueError& error) {
      const std::string text = error.what_without_backtrace();
      if (is_inplace(sample_.op.schema()) &&
          text.find("cannot write") != std::string::npos) {
        return true;
      }
      throw;
    }
    compare_all(outputs, expected_.outputs, "result");
    if (graph) {
      compare_gradients(mesh, outputs, leaves(tensors_of(arguments)));
    }
    return false;
  }

  void compare_gradients(
      const mesh::DeviceMesh& mesh,
      const std::vector<at::Tensor>& outputs,
      const std::vector<at::Tensor>& inputs) const {
    std::vector<at::Tensor> weights;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto& weight = expected_.weights[i];
      TORCH_CHECK(
          !weight.defined() || outputs[i].requires_grad(),
          "output ",
          i,
          " has no graph");
      weights.push_back(
          weight.defined()
              ? test::distributed(
                    weight, mesh, Placements(shape_.size(), Replicate()))
              : weight);
    }
    compare_all(
        gradients(outputs, weights, inputs), expected_.gradients, "gradient");
  }

  void compare_all(
      const std::vector<at::Tensor>& actual,
      const std::vector<at::Tensor>& expected,
      const char* what) const {
    TORCH_CHECK(
        actual.size() == expected.size(),
        actual.size(),
        " ",
        what,
        "s where one rank makes ",
        expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      const auto which = c10::str(what, " ", i);
      TORCH_CHECK(
          actual[i].defined() == expected[i].defined(),
          which,
          expected[i].defined() ? " is missing" : " is one too many");
      if (!actual[i].defined()) {
        continue;
      }
      TORCH_CHECK(is_dtensor(actual[i]), which, " is no DTensor");
      const auto whole = full_tensor(actual[i].detach());
      if (has_values(sample_.op)) {
        require_close(whole, expected[i], which.c_str());
      } else {
        require_close(
            at::zeros_like(whole), at::zeros_like(expected[i]), which.c_str());
      }
    }
  }

  const Sample& sample_;
  const std::vector<int64_t>& shape_;
  Report& report_;
  std::vector<at::Tensor> tensors_;
  Expected expected_;
};

} // namespace

void check_dispatch(
    const Sample& sample,
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    const DispatchOptions& options,
    Report& report) {
  DispatchCheck(sample, mesh_shape, report).check(ranks, options);
}

} // namespace weft::dtensor::check
