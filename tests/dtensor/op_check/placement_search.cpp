#include "tests/dtensor/op_check/placement_search.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <sstream>

#include <torch/torch.h>

#include "tests/dtensor/op_check/parts_of_op.h"

namespace weft::dtensor::check {
namespace {

// Placements of all inputs tried for one sample.
constexpr int64_t kLimit = 400;
// What is listed of one op.
constexpr size_t kLackingPerOp = 12;

class Search {
 public:
  using Found = std::function<void(const std::string&)>;

  Search(const Sample& sample, const Grid& grid, Found found)
      : sample_(sample), found_(std::move(found)) {
    variants_.emplace_back(sample, sample.arguments, grid);
    variants_.emplace_back(sample, other_arguments(sample), grid);
    metas_ = variants_[0].infer(Replicate());
    for (const auto& strategy :
         variants_[0].strategies(0, Replicate(), metas_)) {
      known_.push_back(strategy.inputs);
    }
  }

  void search(uint64_t seed) {
    std::vector<std::vector<Placement>> choices;
    int64_t total = 1;
    for (const auto& tensor : variants_[0].tensors()) {
      choices.push_back(choices_for(tensor));
      total = std::min<int64_t>(
          total * static_cast<int64_t>(choices.back().size()), 1 << 20);
    }
    std::mt19937_64 random(seed);
    for (int64_t i = 0; i < std::min(total, kLimit); ++i) {
      auto rest = static_cast<uint64_t>(i);
      Placements inputs;
      for (const auto& choice : choices) {
        if (total > kLimit) {
          inputs.push_back(choice[random() % choice.size()]);
        } else {
          inputs.push_back(choice[rest % choice.size()]);
          rest /= choice.size();
        }
      }
      try_inputs(inputs);
    }
  }

 private:
  std::vector<Placement> choices_for(const at::Tensor& tensor) const {
    std::vector<Placement> choices{Replicate()};
    const int64_t n = variants_[0].grid().shape[0];
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      if (tensor.size(d) >= n) {
        choices.push_back(Shard(d));
      }
    }
    if (tensor.is_floating_point()) {
      for (const auto op :
           {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
        choices.push_back(Partial(op));
      }
    }
    return choices;
  }

  // Where an output may lie.
  static std::vector<Placement> results_for(const at::Tensor& tensor) {
    std::vector<Placement> results{Replicate()};
    if (!tensor.defined()) {
      return results;
    }
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      results.push_back(Shard(d));
    }
    if (tensor.scalar_type() != at::kBool) {
      results.push_back(Partial());
    }
    if (tensor.is_floating_point()) {
      results.push_back(Partial(ReduceOp::kAvg));
    }
    results.push_back(Partial(ReduceOp::kMax));
    results.push_back(Partial(ReduceOp::kMin));
    return results;
  }

  void try_inputs(const Placements& inputs) {
    const bool cuts = std::ranges::any_of(
        inputs, [](const auto& placement) { return placement.is_shard(); });
    if (!cuts || std::ranges::find(known_, inputs) != known_.end()) {
      return;
    }
    const auto outputs = variants_[0].rule().localize ? guess_outputs(inputs)
                                                      : find_outputs(inputs);
    found_(
        outputs.empty() ? ""
                        : describe(inputs, outputs) + "  for " + sample_.text +
                              " (" + sample_.where + ")");
  }

  static std::vector<Placements> on_line(const Placements& placements) {
    std::vector<Placements> list;
    for (const auto& placement : placements) {
      list.emplace_back(1, placement);
    }
    return list;
  }

  // Nothing where the ranks' ops throw.
  Parts try_run(
      const ByHand& hand,
      const Placements& inputs,
      const Placements& outputs) const {
    try {
      const auto placed = on_line(inputs);
      return hand.run(placed, on_line(outputs), metas_, hand.cut(placed));
    } catch (const std::exception&) {
      return {};
    }
  }

  static bool fits(
      const ByHand& hand,
      const Parts& results,
      size_t i,
      const Placement& placement) {
    try {
      hand.compare(results, i, {placement});
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  // One run tells every output's placement; empty if there is none.
  Placements find_outputs(const Placements& inputs) const {
    std::vector<Parts> results;
    for (const auto& hand : variants_) {
      const Placements any(metas_.size(), Replicate());
      results.push_back(try_run(hand, inputs, any));
      if (results.back().empty()) {
        return {};
      }
    }
    Placements outputs;
    for (size_t i = 0; i < metas_.size(); ++i) {
      bool found = false;
      for (const auto& placement : results_for(variants_[0].expected()[i])) {
        found = fits(variants_[0], results[0], i, placement) &&
                fits(variants_[1], results[1], i, placement);
        if (found) {
          outputs.push_back(placement);
          break;
        }
      }
      if (!found) {
        return {};
      }
    }
    return outputs;
  }

  // The local arguments depend on where the outputs are to lie.
  Placements guess_outputs(const Placements& inputs) const {
    if (metas_.empty()) {
      return {};
    }
    for (const auto& placement : results_for(variants_[0].expected()[0])) {
      const Placements outputs(metas_.size(), placement);
      const bool valid = std::ranges::all_of(variants_, [&](const auto& hand) {
        const auto results = try_run(hand, inputs, outputs);
        bool all = !results.empty();
        for (size_t i = 0; all && i < outputs.size(); ++i) {
          all = fits(hand, results, i, placement);
        }
        return all;
      });
      if (valid) {
        return outputs;
      }
    }
    return {};
  }

  const Sample& sample_;
  Found found_;
  std::vector<ByHand> variants_;
  std::vector<OutputMeta> metas_;
  std::vector<Placements> known_;
};

// A line a case: empty, or placements that the rule lacks. Written at once, in
// case the next one is the process's end.
void write_line(int end, const std::string& line) {
  const auto text = line + "\n";
  if (::write(end, text.data(), text.size()) < 0) {
    ::_exit(1);
  }
}

void search_in_child(
    const Sample& sample,
    const Grid& grid,
    uint64_t seed,
    int end) {
  try {
    Search(sample, grid, [&](const std::string& line) {
      write_line(end, line);
    }).search(seed);
  } catch (const std::exception&) {
    // Values that the op does not take, or a rule that the strategy check
    // reports.
  }
}

void read_findings(int end, const Sample& sample, Report& report) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; (n = ::read(end, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  std::istringstream lines(text);
  auto& lacking = report.ops[sample.name()].lacking;
  for (std::string line; std::getline(lines, line);) {
    ++report.cases["search"];
    if (!line.empty() && lacking.size() < kLackingPerOp) {
      lacking.insert(line);
    }
  }
}

} // namespace

void search_placements(
    const Sample& sample,
    const Grid& grid,
    uint64_t seed,
    Report& report) {
  const Rule* rule = find_rule(sample.op);
  if (!rule || rule->value_free || sample.is_out ||
      is_inplace(sample.op.schema()) || !has_values(sample.op)) {
    return;
  }
  std::array<int, 2> ends{};
  TORCH_CHECK(::pipe(ends.data()) == 0, "no pipe");
  const pid_t child = ::fork();
  TORCH_CHECK(child >= 0, "no child process");
  if (child == 0) {
    ::close(ends[0]);
    // What a corrupted heap says, and the time that it may loop.
    ::close(STDERR_FILENO);
    ::alarm(60);
    search_in_child(sample, grid, seed, ends[1]);
    ::_exit(0);
  }
  ::close(ends[1]);
  read_findings(ends[0], sample, report);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
}

} // namespace weft::dtensor::check
