#include "tests/dtensor/op_check/leaf_check.h"

#include <algorithm>
#include <random>

#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/gradient.h"
#include "tests/dtensor/op_check/one_rank.h"
#include "tests/dtensor/op_check/parts_of_op.h"
#include "tests/dtensor/parts.h"

namespace weft::dtensor::check {
namespace {

// The call on leaves: an op in place writes to a copy, since autograd lets
// nobody write to a leaf.
std::vector<at::Tensor> call_on_leaves(
    const Sample& sample,
    const Stack& arguments,
    const std::vector<bool>& written) {
  return call(
      sample.op, map_tensors(arguments, [&](const at::Tensor& t, size_t i) {
        return written[i] && t.requires_grad() ? t.clone() : t;
      }));
}

// backward() of the sum of the outputs, each times its functional: complex
// ones have no loss and get the functional as their gradient.
void run_backward(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& weights) {
  at::Tensor loss;
  std::vector<at::Tensor> of;
  std::vector<at::Tensor> by;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!weights[i].defined()) {
      continue;
    }
    if (outputs[i].is_complex()) {
      of.push_back(outputs[i]);
      by.push_back(weights[i]);
      continue;
    }
    const auto term = (outputs[i] * weights[i]).sum().to(at::kDouble);
    loss = loss.defined() ? loss + term : term;
  }
  if (loss.defined()) {
    of.push_back(loss);
    by.emplace_back();
  }
  torch::autograd::backward(of, by);
}

// ---- placements -------------------------------------------------------------

bool can_be_partial(const at::Tensor& tensor) {
  return tensor.is_floating_point() && !c10::isFloat8Type(tensor.scalar_type());
}

// One mesh dim's; `alone`: no other mesh dim cuts, so that rows can be given.
std::vector<Placement>
placements_on(const at::Tensor& tensor, int64_t ranks, bool alone) {
  std::vector<Placement> list{Replicate()};
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    list.push_back(Shard(d));
    if (alone) {
      std::vector<int64_t> rows(ranks);
      rows.front() = std::min<int64_t>(1, tensor.size(d));
      rows.back() += tensor.size(d) - rows.front();
      list.push_back(Shard(d, rows));
      list.push_back(StridedShard(d, 2));
    }
  }
  if (can_be_partial(tensor)) {
    for (const auto op :
         {ReduceOp::kSum,
          ReduceOp::kAvg,
          ReduceOp::kMin,
          ReduceOp::kMax,
          ReduceOp::kProduct}) {
      list.push_back(Partial(op));
    }
  }
  return list;
}

// No tensor can be made with reductions that do not commute.
bool mixes_reductions(const Placements& placements) {
  const auto linear = [](const Placement& p) {
    return p.is_partial(ReduceOp::kSum) || p.is_partial(ReduceOp::kAvg);
  };
  for (const auto& a : placements) {
    for (const auto& b : placements) {
      if (a.is_partial() && b.is_partial() && !(linear(a) && linear(b)) &&
          a.reduce_op() != b.reduce_op()) {
        return true;
      }
    }
  }
  return false;
}

std::vector<Placements> placements_of(
    const at::Tensor& tensor,
    const std::vector<int64_t>& shape) {
  std::vector<Placements> all;
  if (shape.size() == 1) {
    for (const auto& each : placements_on(tensor, shape[0], true)) {
      all.push_back({each});
    }
    return all;
  }
  for (const auto& first : placements_on(tensor, shape[0], false)) {
    for (const auto& second : placements_on(tensor, shape[1], false)) {
      if (!mixes_reductions({first, second})) {
        all.push_back({first, second});
      }
    }
  }
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    all.push_back({StridedShard(d, shape[1]), Shard(d)});
    std::vector<int64_t> rows(shape[1]);
    rows.back() = tensor.size(d);
    all.push_back({Replicate(), Shard(d, rows)});
  }
  return all;
}

// Each leaf placed in every way, the other tensors replicated in the first
// round, placed by chance in the second.
std::vector<std::vector<Placements>> cases_of(
    const std::vector<at::Tensor>& tensors,
    const std::vector<int64_t>& shape,
    const LeafOptions& options) {
  std::mt19937_64 random(options.seed);
  std::vector<std::vector<Placements>> choices;
  for (const auto& tensor : tensors) {
    choices.push_back(placements_of(tensor, shape));
  }
  std::vector<std::vector<Placements>> cases;
  for (size_t round = 0; round < (tensors.size() > 1 ? 2 : 1); ++round) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (size_t c = 0; wants_gradient(tensors[i]) && c < choices[i].size();
           ++c) {
        std::vector<Placements> placements;
        for (const auto& list : choices) {
          placements.push_back(list[round == 0 ? 0 : random() % list.size()]);
        }
        placements[i] = choices[i][c];
        cases.push_back(placements);
      }
    }
  }
  std::ranges::shuffle(cases, random);
  if (std::cmp_greater(cases.size(), options.cases)) {
    cases.resize(options.cases);
  }
  return cases;
}

// ---- the check --------------------------------------------------------------

class LeafCheck {
 public:
  LeafCheck(
      const Sample& sample,
      const std::vector<int64_t>& shape,
      Report& report)
      : sample_(sample),
        shape_(shape),
        report_(report),
        tensors_(tensors_of(sample.arguments)),
        written_(written_tensors(sample.op, sample.arguments)) {}

  // False if one rank has no gradient of this call.
  bool run_alone() {
    if (is_random(sample_.op) || !has_values(sample_.op) || sample_.is_out) {
      return false;
    }
    const auto arguments =
        map_tensors(sample_.arguments, [](const at::Tensor& t, size_t) {
          return t.clone().requires_grad_(wants_gradient(t));
        });
    try {
      outputs_ = call_on_leaves(sample_, arguments, written_);
      weights_ = functionals(outputs_);
      run_backward(outputs_, weights_);
    } catch (const std::exception&) {
      return false;
    }
    bool any = false;
    for (const auto& leaf : tensors_of(arguments)) {
      gradients_.push_back(leaf.grad());
      any |= leaf.grad().defined();
    }
    return any;
  }

  void check(LockstepRanks& ranks, const LeafOptions& options) {
    // What was added to a gradient has to have lain as it does.
    twice_ = options.seed % 3 == 0;
    for (const auto& placements : cases_of(tensors_, shape_, options)) {
      if (report_.failures_of("leaves", sample_.name()) >= kFailuresPerOp) {
        return;
      }
      ++report_.cases["leaves"];
      check_one(ranks, placements);
    }
  }

 private:
  void check_one(
      LockstepRanks& ranks,
      const std::vector<Placements>& placements) {
    std::vector<std::vector<at::Tensor>> parts;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      parts.push_back(cut_parts(tensors_[i], placements[i], shape_));
    }
    std::vector<std::string> refused(c10::multiply_integers(shape_));
    const auto errors = ranks.run([&](const mesh::DeviceMesh& mesh) {
      try {
        run(mesh, placements, parts);
      } catch (const c10::ValueError& error) {
        refused[mesh.rank()] = message_of(error);
      }
    });
    count(first_error(errors, refused), refused[0], placements);
  }

  // What ended it, not what the ranks say that waited for others then.
  static std::string first_error(
      const std::vector<std::string>& errors,
      const std::vector<std::string>& refused) {
    std::string message;
    for (size_t rank = 0; rank < refused.size(); ++rank) {
      if (refused[rank].empty() != refused[0].empty()) {
        return "some ranks refused and others did not: " +
               (refused[rank].empty() ? refused[0] : refused[rank]);
      }
      const bool waited =
          errors[rank].find("The group was aborted") != std::string::npos;
      if (!errors[rank].empty() && (message.empty() || !waited)) {
        message = errors[rank];
      }
    }
    return message;
  }

  void count(
      const std::string& message,
      const std::string& refusal,
      const std::vector<Placements>& placements) {
    auto& result = report_.ops[sample_.name()];
    if (!message.empty()) {
      report_.fail(
          {"leaves",
           sample_.name(),
           sample_.where,
           describe(placements),
           message});
    } else if (!refusal.empty()) {
      ++result.leaves_refused;
    } else {
      ++result.leaves_right;
    }
  }

  std::string describe(const std::vector<Placements>& placements) const {
    std::string text = sample_.text + " on mesh" + c10::str(shape_) + ":";
    for (const auto& each : placements) {
      text += " " + to_string(each);
    }
    return text;
  }

  // On each rank.
  void run(
      const mesh::DeviceMesh& mesh,
      const std::vector<Placements>& placements,
      const std::vector<std::vector<at::Tensor>>& parts) const {
    const auto arguments =
        map_tensors(sample_.arguments, [&](const at::Tensor& whole, size_t i) {
          auto leaf = make_dtensor(
              parts[i][mesh.rank()].clone(),
              fitted(DTensorSpec(mesh, placements[i]), whole.sizes()),
              whole.sizes(),
              whole.strides());
          leaf.requires_grad_(wants_gradient(whole));
          match_gradient_placement(leaf);
          return leaf;
        });
    std::vector<at::Tensor> weights;
    for (const auto& weight : weights_) {
      weights.push_back(
          weight.defined()
              ? test::distributed(
                    weight, mesh, Placements(shape_.size(), Replicate()))
              : weight);
    }
    for (int64_t i = 0; i < (twice_ ? 2 : 1); ++i) {
      const auto outputs = call_on_leaves(sample_, arguments, written_);
      compare_results(outputs);
      run_backward(outputs, weights);
    }
    compare_gradients(tensors_of(arguments));
  }

  void compare_results(const std::vector<at::Tensor>& outputs) const {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].defined()) {
        require_close(
            full_tensor(outputs[i].detach()),
            outputs_[i].detach(),
            c10::str("result ", i).c_str());
      }
    }
  }

  void compare_gradients(const std::vector<at::Tensor>& leaves) const {
    for (size_t i = 0; i < leaves.size(); ++i) {
      const auto which = c10::str("gradient ", i);
      const auto& actual = leaves[i].grad();
      TORCH_CHECK(
          actual.defined() == gradients_[i].defined(),
          which,
          actual.defined() ? " is one too many" : " is missing");
      if (!actual.defined()) {
        continue;
      }
      const auto lies = spec_of(leaves[i]).without_partial();
      TORCH_CHECK(
          spec_of(actual) == lies,
          which,
          " has placements ",
          spec_of(actual).to_string(),
          ", expected ",
          lies.to_string());
      require_close(
          full_tensor(actual),
          twice_ ? gradients_[i] * 2 : gradients_[i],
          which.c_str());
    }
  }

  const Sample& sample_;
  const std::vector<int64_t>& shape_;
  Report& report_;
  std::vector<at::Tensor> tensors_;
  std::vector<bool> written_;
  std::vector<at::Tensor> outputs_;
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> gradients_;
  bool twice_ = false;
};

} // namespace

void check_leaves(
    const Sample& sample,
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    const LeafOptions& options,
    Report& report) {
  try {
    LeafCheck check(sample, mesh_shape, report);
    if (check.run_alone()) {
      check.check(ranks, options);
    }
  } catch (const std::exception& error) {
    report.fail(
        {"leaves",
         sample.name(),
         sample.where,
         sample.text,
         message_of(error)});
  }
}

} // namespace weft::dtensor::check
