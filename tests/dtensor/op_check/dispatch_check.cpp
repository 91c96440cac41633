#include "tests/dtensor/op_check/dispatch_check.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <random>

#include <torch/torch.h>

#include "dtensor/random/random_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/dtensor/op_check/one_rank.h"
#include "tests/dtensor/op_check/parts_of_op.h"
#include "tests/dtensor/parts.h"

namespace weft::dtensor::check {
namespace {

// What ops say that are to write where a tensor does not lie.
constexpr std::array kRefusals{
    "cannot write",
    "would change the sizes",
    "is written to, but does not have the placements of",
    "is Partial. Redistribute it"};

// ---- placements -------------------------------------------------------------

// Most rows on the last rank of a line, and two stripes a rank.
void add_other_cuts(
    const at::Tensor& tensor,
    int64_t n,
    std::vector<Placement>& list) {
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    std::vector<int64_t> rows(n);
    rows.front() = std::min<int64_t>(1, tensor.size(d));
    rows.back() += tensor.size(d) - rows.front();
    list.push_back(Shard(d, rows));
    list.push_back(StridedShard(d, 2));
  }
}

// Those of the operand check.
std::vector<Placement> common_placements(const at::Tensor& tensor) {
  std::vector<Placement> list{Replicate()};
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    list.push_back(Shard(d));
  }
  if (wants_gradient(tensor)) {
    list.push_back(Partial());
  }
  return list;
}

std::vector<Placement> placements_of(
    const at::Tensor& tensor,
    bool is_out,
    const std::vector<int64_t>& mesh_shape) {
  std::vector<Placement> list{Replicate()};
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    list.push_back(Shard(d));
  }
  if (mesh_shape.size() == 1) {
    add_other_cuts(tensor, mesh_shape[0], list);
  }
  if (is_out) {
    return list;
  }
  // Terms of numbers of eight bits cannot be made.
  if (c10::isFloat8Type(tensor.scalar_type())) {
    return list;
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
  /// `choices`: the placements of each tensor.
  Combinations(
      const std::vector<std::vector<Placement>>& choices,
      size_t mesh_ndim,
      const DispatchOptions& options)
      : mesh_ndim_(mesh_ndim) {
    for (const auto& of_tensor : choices) {
      for (size_t d = 0; d < mesh_ndim_; ++d) {
        choices_.push_back(of_tensor);
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
        written_(written_tensors(sample.op, sample.arguments)),
        expected_(on_one_rank(sample)) {}

  void check(LockstepRanks& ranks, const DispatchOptions& options) {
    std::vector<std::vector<Placement>> choices;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      choices.push_back(
          placements_of(tensors_[i], sample_.is_out && written_[i], shape_));
    }
    // In turn, such numbers as libtorch makes of scalars are plain tensors.
    plain_numbers_ = options.seed % 2 == 0;
    auto& result = report_.ops[sample_.name()];
    check_combinations(
        ranks, choices, options, "dispatch", [&](bool is_refused) {
          ++result.dispatched;
          result.refused += is_refused;
        });
  }

  void check_operands(LockstepRanks& ranks, const DispatchOptions& options) {
    const auto has_gradient = [](const auto& gradient) {
      return gradient.defined();
    };
    if (std::ranges::count_if(expected_.gradients, has_gradient) < 2) {
      return;
    }
    std::vector<std::vector<Placement>> choices;
    std::ranges::transform(
        tensors_, std::back_inserter(choices), common_placements);
    auto& result = report_.ops[sample_.name()];
    check_combinations(
        ranks, choices, options, "operands", [&](bool is_refused) {
          ++(is_refused ? result.operands_refused : result.operands_right);
        });
  }

  // Tries shards of one input, of all inputs of its sizes, and of all that have
  // a dim of this size, until one neither gathers nor fails.
  bool keeps_a_cut(LockstepRanks& ranks) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      for (int64_t d = 0; d < tensors_[i].dim(); ++d) {
        for (const auto together :
             {Together::kAlone, Together::kSameSizes, Together::kSameLength}) {
          if (tensors_[i].size(d) >= 2 &&
              keeps(ranks, cut_together(i, d, together))) {
            return true;
          }
        }
      }
    }
    return false;
  }

  bool runs_whole(LockstepRanks& ranks) {
    const std::vector<Placements> whole(
        tensors_.size(), Placements(shape_.size(), Replicate()));
    const auto parts = parts_of(whole);
    std::vector<char> refused(c10::multiply_integers(shape_));
    const auto errors = ranks.run([&](const mesh::DeviceMesh& mesh) {
      refused[mesh.rank()] = run(mesh, whole, parts);
    });
    return errors[0].empty() && !refused[0];
  }

 private:
  using Parts = std::vector<std::vector<at::Tensor>>;

  // Which other inputs are cut with one of them.
  enum class Together { kAlone, kSameSizes, kSameLength };

  std::vector<Placements>
  cut_together(size_t input, int64_t dim, Together together) const {
    const auto sizes = tensors_[input].sizes();
    std::vector<Placements> placements;
    for (size_t k = 0; k < tensors_.size(); ++k) {
      const auto own = tensors_[k].sizes();
      Placement placement = Replicate();
      if (k == input || (together == Together::kSameSizes && own == sizes)) {
        placement = Shard(dim);
      } else if (together == Together::kSameLength) {
        const auto* const place = std::ranges::find(own, sizes[dim]);
        if (place != own.end()) {
          placement = Shard(place - own.begin());
        }
      }
      placements.emplace_back(1, placement);
    }
    return placements;
  }

  bool keeps(LockstepRanks& ranks, const std::vector<Placements>& placements) {
    const auto parts = parts_of(placements);
    std::vector<char> kept(c10::multiply_integers(shape_));
    const auto errors = ranks.run([&](const mesh::DeviceMesh& mesh) {
      const auto arguments = wrap(mesh, placements, parts, false);
      manual_seed(mesh, kRandomSeed);
      auto& flight_recorder = mesh.group(0).flight_recorder();
      flight_recorder.reset();
      const auto outputs = call(sample_.op, arguments);
      const auto counts = flight_recorder.counts();
      compare_all(outputs, expected_.outputs, "result");
      const bool gathers =
          counts.contains("all_gather") || counts.contains("all_to_all");
      const bool stays = std::ranges::any_of(outputs, [](const auto& output) {
        return is_dtensor(output) && !spec_of(output).is_replicated();
      });
      kept[mesh.rank()] =
          !gathers && (stays || !counts.empty() || returns_numbers(sample_.op));
    });
    return std::ranges::all_of(
               errors, [](const auto& error) { return error.empty(); }) &&
           std::ranges::all_of(kept, [](char each) { return each; });
  }

  Parts parts_of(const std::vector<Placements>& placements) const {
    Parts parts;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      parts.push_back(cut_parts(tensors_[i], placements[i], shape_));
    }
    return parts;
  }

  Stack wrap(
      const mesh::DeviceMesh& mesh,
      const std::vector<Placements>& placements,
      const Parts& parts,
      bool graph) const {
    return map_tensors(
        sample_.arguments, [&](const at::Tensor& whole, size_t i) {
          if (plain_numbers_ && i > 0 && whole.dim() == 0 && !graph &&
              !written_[i]) {
            return whole.clone();
          }
          auto dtensor = make_dtensor(
              parts[i][mesh.rank()].clone(),
              DTensorSpec(mesh, placements[i]),
              whole.sizes(),
              whole.strides());
          return dtensor.requires_grad_(graph && wants_gradient(whole));
        });
  }

  // Tells `count` of each combination whether the op refused it.
  template <class Count>
  void check_combinations(
      LockstepRanks& ranks,
      const std::vector<std::vector<Placement>>& choices,
      const DispatchOptions& options,
      const std::string& part,
      const Count& count) {
    const Combinations combinations(choices, shape_.size(), options);
    for (const auto& placements : combinations.list()) {
      if (report_.failures_of(part, sample_.name()) >= kFailuresPerOp) {
        return;
      }
      ++report_.cases[part];
      count(check_one(ranks, placements, part));
    }
  }

  // Whether the op refused.
  bool check_one(
      LockstepRanks& ranks,
      const std::vector<Placements>& placements,
      const std::string& part) {
    const auto parts = parts_of(placements);
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
    if (!message.empty()) {
      report_.fail(
          {part, sample_.name(), sample_.where, describe(placements), message});
    }
    return refused[0];
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
    const auto arguments = wrap(mesh, placements, parts, graph);
    manual_seed(mesh, kRandomSeed);
    std::vector<at::Tensor> outputs;
    try {
      outputs = call(sample_.op, arguments);
    } catch (const c10::ValueError& error) {
      const std::string text = error.what_without_backtrace();
      const bool writes = std::ranges::find(written_, true) != written_.end();
      const bool says_so = std::ranges::any_of(kRefusals, [&](auto refusal) {
        return text.find(refusal) != std::string::npos;
      });
      // Batch norms write to statistics that their schemas do not mark.
      const bool statistics =
          text.find("its running statistics") != std::string::npos;
      if ((writes || statistics) && says_so) {
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
      // Some derivative formulas make plain zeros for "none".
      const bool plain_zeros = std::string_view(what) == "gradient" &&
                               !is_dtensor(actual[i]) &&
                               !actual[i].any().item<bool>();
      const bool plain = plain_zeros || returns_numbers(sample_.op);
      TORCH_CHECK(plain || is_dtensor(actual[i]), which, " is no DTensor");
      const auto whole = plain ? actual[i] : full_tensor(actual[i].detach());
      if (has_values(sample_.op) || is_random(sample_.op)) {
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
  std::vector<bool> written_;
  Expected expected_;
  bool plain_numbers_ = false;
};

} // namespace

void check_cut_is_kept(
    const std::vector<Sample>& samples,
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    Report& report) {
  bool runs = false;
  for (const auto& sample : samples) {
    auto& result = report.ops[sample.name()];
    try {
      DispatchCheck check(sample, mesh_shape, report);
      result.dispatched_cut = check.keeps_a_cut(ranks);
      runs = runs || result.dispatched_cut || check.runs_whole(ranks);
    } catch (const std::exception&) {
      // Reported by check_dispatch().
    }
    if (result.dispatched_cut) {
      break;
    }
  }
  if (!samples.empty()) {
    report.ops[samples[0].name()].refuses = !runs;
  }
}

void check_operands(
    const Sample& sample,
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    const DispatchOptions& options,
    Report& report) {
  try {
    DispatchCheck(sample, mesh_shape, report).check_operands(ranks, options);
  } catch (const std::exception& error) {
    report.fail(
        {"operands", sample.name(), sample.where, sample.text, error.what()});
  }
}

void check_dispatch(
    const Sample& sample,
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    const DispatchOptions& options,
    Report& report) {
  try {
    DispatchCheck(sample, mesh_shape, report).check(ranks, options);
  } catch (const std::exception& error) {
    report.fail(
        {"dispatch", sample.name(), sample.where, sample.text, error.what()});
  }
}

} // namespace weft::dtensor::check
