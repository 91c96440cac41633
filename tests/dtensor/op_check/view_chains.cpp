#include "tests/dtensor/op_check/view_chains.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <sstream>

#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "tests/dtensor/op_check/arguments.h"
#include "tests/dtensor/parts.h"

namespace weft::dtensor::check {
namespace {

constexpr double kTolerance = 1e-9;

// ---- choices, the same on every rank ----------------------------------------

class Choice {
 public:
  explicit Choice(uint64_t seed) : engine_(seed) {}

  /// In [begin, end).
  int64_t number(int64_t begin, int64_t end) {
    return begin +
           static_cast<int64_t>(engine_() % static_cast<uint64_t>(end - begin));
  }
  bool chance(double probability) {
    return static_cast<double>(engine_() % 1000) < 1000 * probability;
  }
  uint64_t seed() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

std::vector<int64_t> random_sizes(Choice& choice) {
  static const std::vector<std::vector<int64_t>> kSizes{
      {6, 4},
      {24},
      {5, 6},
      {4, 6},
      {2, 3, 4},
      {3, 4, 2},
      {1, 6},
      {7},
      {8, 3},
      {2, 6, 2},
      {4, 1, 6},
      {12, 2}};
  return kSizes[choice.number(0, static_cast<int64_t>(kSizes.size()))];
}

// Sizes of `n` parts that add up to `size`, some of them empty.
std::vector<int64_t> random_parts(Choice& choice, int64_t size, int64_t n) {
  std::vector<int64_t> ends{0, size};
  for (int64_t i = 1; i < n; ++i) {
    ends.push_back(choice.number(0, size + 1));
  }
  std::ranges::sort(ends);
  std::vector<int64_t> parts;
  for (int64_t i = 0; i < n; ++i) {
    parts.push_back(ends[i + 1] - ends[i]);
  }
  return parts;
}

Placements random_placements(
    Choice& choice,
    const std::vector<int64_t>& sizes,
    const std::vector<int64_t>& mesh_shape,
    bool partial) {
  Placements placements;
  std::set<int64_t> cut;
  for (const int64_t n : mesh_shape) {
    const int64_t dim = choice.number(0, static_cast<int64_t>(sizes.size()));
    const int64_t kind = choice.number(0, 10);
    const bool fresh = cut.insert(dim).second;
    if (kind == 0) {
      placements.push_back(Replicate());
    } else if (kind == 1 && partial) {
      placements.push_back(Partial());
    } else if (kind == 2 && fresh && mesh_shape.size() == 1) {
      placements.push_back(Shard(dim, random_parts(choice, sizes[dim], n)));
    } else if (kind == 3 && fresh && sizes[dim] % 2 == 0) {
      placements.push_back(StridedShard(dim, 2));
    } else {
      placements.push_back(Shard(dim));
    }
  }
  return placements;
}

// ---- one program
// --------------------------------------------------------------

// A tensor of one rank and the DTensor that must show the same.
struct Pair {
  at::Tensor plain;
  at::Tensor placed;
  std::string name;
};

struct ViewOp {
  std::string text;
  std::function<at::Tensor(const at::Tensor&)> run;
};

std::vector<int64_t> random_factors(Choice& choice, int64_t size) {
  std::vector<int64_t> factors;
  for (int64_t left = size; left > 1;) {
    std::vector<int64_t> divisors;
    for (int64_t d = 2; d <= left; ++d) {
      if (left % d == 0) {
        divisors.push_back(d);
      }
    }
    factors.push_back(
        divisors[choice.number(0, static_cast<int64_t>(divisors.size()))]);
    left /= factors.back();
  }
  if (factors.empty() || choice.chance(0.2)) {
    factors.push_back(1);
  }
  return factors;
}

// "select(0, 1)", and what it does.
template <class Run, class... Numbers>
ViewOp named(const char* name, Run run, const Numbers&... numbers) {
  std::vector<std::string> texts{c10::str(numbers)...};
  std::ostringstream text;
  text << name << "(" << c10::Join(", ", texts) << ")";
  return {text.str(), std::move(run)};
}

std::optional<ViewOp> random_view(Choice& choice, const at::Tensor& x) {
  using at::Tensor;
  const int64_t kind = choice.number(0, 20);
  if (kind == 0) {
    return named(
        "unsqueeze", [](const Tensor& t) { return t.unsqueeze(0); }, 0);
  }
  if (kind == 1) {
    return named("detach", [](const Tensor& t) { return t.detach(); });
  }
  if (kind <= 3) {
    const auto sizes = random_factors(choice, x.numel());
    if (x.numel() == 0) {
      return std::nullopt;
    }
    return named(
        "view",
        [sizes](const Tensor& t) { return t.view(sizes); },
        c10::IntArrayRef(sizes));
  }
  if (x.dim() == 0) {
    return std::nullopt;
  }
  const int64_t d = choice.number(0, x.dim());
  const int64_t e = choice.number(0, x.dim());
  const int64_t size = x.size(d);
  if (kind <= 5) {
    if (size == 0) {
      return std::nullopt;
    }
    const int64_t i = choice.number(0, size);
    return named(
        "select", [d, i](const Tensor& t) { return t.select(d, i); }, d, i);
  }
  if (kind <= 7) {
    const int64_t begin = choice.number(0, size + 1);
    const int64_t end = choice.number(begin, size + 1);
    const int64_t step = choice.number(1, 3);
    return named(
        "slice",
        [=](const Tensor& t) { return t.slice(d, begin, end, step); },
        d,
        begin,
        end,
        step);
  }
  switch (kind) {
    case 8:
      return named(
          "transpose",
          [=](const Tensor& t) { return t.transpose(d, e); },
          d,
          e);
    case 9:
      return named(
          "movedim", [=](const Tensor& t) { return t.movedim(d, e); }, d, e);
    case 10: {
      const auto factors = random_factors(choice, size);
      if (size == 0) {
        return std::nullopt;
      }
      return named(
          "unflatten",
          [=](const Tensor& t) { return t.unflatten(d, factors); },
          d,
          c10::IntArrayRef(factors));
    }
    case 11: {
      const int64_t n = choice.number(1, 4);
      const auto pick = choice.number(0, 8);
      return named(
          "chunk",
          [=](const Tensor& t) {
            const auto parts = t.chunk(n, d);
            return parts[pick % parts.size()];
          },
          n,
          d);
    }
    case 12: {
      const int64_t n = choice.number(1, 4);
      const auto pick = choice.number(0, 8);
      return named(
          "split",
          [=](const Tensor& t) {
            const auto parts = t.split(n, d);
            return parts[pick % parts.size()];
          },
          n,
          d);
    }
    case 13:
      if (size == 0) {
        return std::nullopt;
      }
      return named(
          "unbind", [=](const Tensor& t) { return t.unbind(d)[0]; }, d);
    case 14: {
      if (d == e) {
        return std::nullopt;
      }
      const int64_t offset = choice.number(-1, 2);
      return named(
          "diagonal",
          [=](const Tensor& t) { return t.diagonal(offset, d, e); },
          offset,
          d,
          e);
    }
    case 15:
      return named(
          "squeeze", [=](const Tensor& t) { return t.squeeze(d); }, d);
    case 16: {
      const int64_t length = choice.number(1, 3);
      const int64_t step = choice.number(1, 3);
      if (length > size) {
        return std::nullopt;
      }
      return named(
          "unfold",
          [=](const Tensor& t) { return t.unfold(d, length, step); },
          d,
          length,
          step);
    }
    case 17: {
      auto sizes = x.sizes().vec();
      if (choice.chance(0.5)) {
        sizes.insert(sizes.begin(), choice.number(1, 4));
      }
      for (auto& each : sizes) {
        each = each == 1 ? choice.number(1, 4) : each;
      }
      return named(
          "expand",
          [=](const Tensor& t) { return t.expand(sizes); },
          c10::IntArrayRef(sizes));
    }
    case 18:
      return named("flatten", [](const Tensor& t) { return t.flatten(); });
    default: {
      std::vector<int64_t> dims(x.dim());
      for (int64_t i = 0; i < x.dim(); ++i) {
        dims[i] = (i + d) % x.dim();
      }
      return named(
          "permute",
          [=](const Tensor& t) { return t.permute(dims); },
          c10::IntArrayRef(dims));
    }
  }
}

// Whether elements share memory in a way that libtorch does not see: a write
// to windows of unfold() that overlap gives what its order makes of them.
// (Expanded tensors are refused.)
bool has_overlapping_windows(const at::Tensor& tensor) {
  int64_t span = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) {
      return false;
    }
    span += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return tensor.numel() > span;
}

struct Outcome {
  /// Empty if everything is as on one rank.
  std::string difference;
  /// One rank refuses a step, too: the program ends there.
  bool ends = false;
};

// What DTensors refuse and one rank does not.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr std::string_view kRefused = "refused: ";

// Runs `step`; the message of what it throws because of its arguments, or
// nothing. Errors of communication are not caught.
std::optional<std::string> refusal_of(const std::function<void()>& step) {
  try {
    step();
  } catch (const mesh::CommError&) {
    throw;
  } catch (const mesh::DisagreementError&) {
    throw;
  } catch (const c10::Error& error) {
    return message_of(error);
  }
  return std::nullopt;
}

class Program {
 public:
  Program(
      const mesh::DeviceMesh& mesh,
      const std::vector<int64_t>& mesh_shape,
      uint64_t seed)
      : mesh_(mesh), mesh_shape_(mesh_shape), choice_(seed) {
    in_graph_ = choice_.chance(0.4);
    const auto sizes = random_sizes(choice_);
    const auto placements =
        random_placements(choice_, sizes, mesh_shape, /*partial=*/true);
    base_ = distribute(sizes, placements);
    text_ = (in_graph_ ? "graph; x = " : "x = ") +
            c10::str(c10::IntArrayRef(sizes), " ", to_string(placements));
    families_.insert(in_graph_ ? "in a graph" : "out of a graph");
    families_.insert(
        "base " + std::string(
                      placements[0].is_replicate() ? "R"
                      : placements[0].is_partial() ? "P(sum)"
                      : placements[0].is_strided() ? "StridedShard"
                      : placements[0].is_chunked() ? "Shard"
                                                   : "Shard of given sizes"));
  }

  Outcome run() {
    Outcome outcome;
    begin();
    const int64_t steps = choice_.number(3, 9);
    for (int64_t i = 0;
         i < steps && outcome.difference.empty() && !outcome.ends;
         ++i) {
      const int64_t kind = choice_.number(0, 10);
      const auto on_both = kind < 5   ? view_step()
                           : kind < 8 ? write_step()
                                      : read_step();
      if (!on_both.run) {
        continue;
      }
      text_ += "; " + on_both.text;
      apply(on_both, outcome);
    }
    for (size_t i = 0;
         i < pool_.size() && outcome.difference.empty() && !outcome.ends;
         ++i) {
      compare(pool_[i], outcome);
    }
    if (in_graph_ && outcome.difference.empty() && !outcome.ends) {
      compare_gradients(outcome);
    }
    return outcome;
  }

  const std::string& text() const { return text_; }
  const std::set<std::string>& families() const { return families_; }

 private:
  // A step of the program: what it does to tensors of one kind. What is
  // returned, if defined, joins the pool.
  struct Step {
    std::string text;
    std::string family;
    std::function<at::Tensor(bool placed)> run;
  };

  Pair distribute(
      const std::vector<int64_t>& sizes,
      const Placements& placements) {
    const auto whole = test::random(sizes, choice_.seed());
    return {whole.clone(), test::distributed(whole, mesh_, placements), ""};
  }

  void begin() {
    if (in_graph_) {
      base_.plain.requires_grad_();
      base_.placed.requires_grad_();
      pool_.push_back({base_.plain * 1, base_.placed * 1, "x"});
    } else {
      pool_.push_back({base_.plain, base_.placed, "x"});
    }
  }

  size_t any() {
    return static_cast<size_t>(
        choice_.number(0, static_cast<int64_t>(pool_.size())));
  }

  const at::Tensor& tensor(size_t index, bool placed) const {
    return placed ? pool_[index].placed : pool_[index].plain;
  }

  Step view_step() {
    const size_t of = any();
    const auto view = random_view(choice_, pool_[of].plain);
    if (!view) {
      return {};
    }
    const auto run = view->run;
    return {
        "v" + std::to_string(pool_.size()) + " = " + pool_[of].name + "." +
            view->text,
        view->text.substr(0, view->text.find('(')),
        [this, of, run](bool placed) { return run(tensor(of, placed)); }};
  }

  Step write_step() {
    const size_t to = any();
    if (has_overlapping_windows(pool_[to].plain)) {
      return {};
    }
    const auto& name = pool_[to].name;
    const auto write = [&](const std::string& text, auto change) {
      return Step{name + "." + text, text, [this, to, change](bool placed) {
                    change(tensor(to, placed), placed);
                    return at::Tensor();
                  }};
    };
    using at::Tensor;
    switch (choice_.number(0, 9)) {
      case 0:
        return write("zero_()", [](Tensor t, bool) { t.zero_(); });
      case 1:
        return write("fill_(2)", [](Tensor t, bool) { t.fill_(2); });
      case 2:
        return write("mul_(3)", [](Tensor t, bool) { t.mul_(3); });
      case 3:
        return write("add_(1)", [](Tensor t, bool) { t.add_(1); });
      case 4:
        return write("sin_()", [](Tensor t, bool) { t.sin_(); });
      case 5:
        return write("masked_fill_(t > 0, -1)", [](Tensor t, bool) {
          t.masked_fill_(t.detach().gt(0), -1);
        });
      case 6:
        if (!in_graph_) {
          return write("_foreach_mul_({t}, 2)", [](Tensor t, bool) {
            at::_foreach_mul_(std::vector<Tensor>{t}, 2);
          });
        }
        [[fallthrough]];
      default: {
        const auto sizes = pool_[to].plain.sizes().vec();
        if (sizes.empty()) {
          return write("add_(2)", [](Tensor t, bool) { t.add_(2); });
        }
        const auto placements =
            random_placements(choice_, sizes, mesh_shape_, false);
        const auto other = distribute(sizes, placements);
        const bool adds = choice_.chance(0.5);
        return write(
            (adds ? "add_(" : "copy_(") + to_string(placements) + ")",
            [other, adds](Tensor t, bool placed) {
              const auto& from = placed ? other.placed : other.plain;
              adds ? t.add_(from) : t.copy_(from);
            });
      }
    }
  }

  Step read_step() {
    const size_t of = any();
    if (choice_.chance(0.5)) {
      return {"read " + pool_[of].name, "read", [this, of](bool placed) {
                return placed ? full_tensor(tensor(of, true).detach())
                              : tensor(of, false).detach();
              }};
    }
    return {"y = " + pool_[of].name + " * 2", "read", [this, of](bool placed) {
              const auto y = tensor(of, placed).detach() * 2;
              return placed ? full_tensor(y) : y;
            }};
  }

  void apply(const Step& step, Outcome& outcome) {
    Pair result;
    const auto by_one = refusal_of([&] { result.plain = step.run(false); });
    const auto by_ranks = refusal_of([&] { result.placed = step.run(true); });
    outcome.ends = by_one && by_ranks;
    if (outcome.ends) {
      return;
    }
    if (by_one) {
      outcome.difference = "only one rank refuses: " + *by_one;
    } else if (by_ranks) {
      families_.insert(step.family.substr(0, step.family.find('(')));
      throw Refused(std::string(kRefused) + *by_ranks);
    } else if (step.family == "read") {
      compare_values(result.placed, result.plain, "read", outcome);
    } else if (result.plain.defined()) {
      families_.insert(step.family);
      result.name = "v" + std::to_string(pool_.size());
      pool_.push_back(std::move(result));
    }
  }

  static void compare(const Pair& pair, Outcome& outcome) {
    compare_values(
        full_tensor(pair.placed.detach()),
        pair.plain.detach(),
        pair.name,
        outcome);
  }

  static void compare_values(
      const at::Tensor& actual,
      const at::Tensor& expected,
      const std::string& name,
      Outcome& outcome) {
    if (actual.sizes() != expected.sizes() ||
        !at::allclose(actual, expected, kTolerance, kTolerance)) {
      outcome.difference =
          c10::str(name, " is ", actual.flatten(), " for ", expected.flatten());
    }
  }

  // Of a sum over all tensors that are in the graph.
  at::Tensor gradient(bool placed) {
    at::Tensor loss;
    for (size_t i = 0; i < pool_.size(); ++i) {
      const auto& each = tensor(i, placed);
      if (each.requires_grad()) {
        const auto term =
            (each * each).sum() * (1.0 + static_cast<double>(i) / 8);
        loss = loss.defined() ? loss + term : term;
      }
    }
    loss.backward();
    return (placed ? base_.placed : base_.plain).grad();
  }

  void compare_gradients(Outcome& outcome) {
    at::Tensor expected;
    at::Tensor actual;
    const auto by_one = refusal_of([&] { expected = gradient(false); });
    const auto by_ranks =
        refusal_of([&] { actual = full_tensor(gradient(true)); });
    if (by_one && !by_ranks) {
      outcome.difference = "only one rank refuses backward: " + *by_one;
    } else if (by_ranks && !by_one) {
      throw Refused(std::string(kRefused) + "backward: " + *by_ranks);
    } else if (!by_one) {
      compare_values(actual, expected, "the gradient", outcome);
    }
  }

  const mesh::DeviceMesh& mesh_;
  const std::vector<int64_t>& mesh_shape_;
  Choice choice_;
  bool in_graph_ = false;
  Pair base_;
  std::vector<Pair> pool_;
  std::string text_;
  std::set<std::string> families_;
};

void count(
    std::map<std::string, ChainCounts>& all,
    const std::set<std::string>& families,
    bool refused) {
  for (const auto& family : families) {
    ++(refused ? all[family].refused : all[family].right);
  }
}

// "refused: [aten::add_] cannot write to its tensor where it lies".
std::string first_words(const std::string& refusal) {
  return refusal.substr(0, refusal.find_first_of(":;(", kRefused.size() + 8));
}

} // namespace

void check_view_chains(
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    const ChainOptions& options,
    Report& report) {
  for (int64_t i = 0; i < options.programs; ++i) {
    const uint64_t seed = (options.seed << 20) + static_cast<uint64_t>(i);
    std::mutex mutex;
    std::vector<Outcome> outcomes;
    std::set<std::string> families;
    std::string text;
    const auto errors = ranks.run([&](const mesh::DeviceMesh& mesh) {
      Program program(mesh, mesh_shape, seed);
      const auto keep = [&] {
        const std::lock_guard lock(mutex);
        families = program.families();
        text = program.text();
      };
      try {
        const auto outcome = program.run();
        const std::lock_guard lock(mutex);
        outcomes.push_back(outcome);
      } catch (const std::exception&) {
        keep();
        throw;
      }
      keep();
    });
    ++report.cases["view chains"];
    std::string failure;
    const bool refused = errors[0].starts_with(kRefused);
    for (const auto& error : errors) {
      if (error.starts_with(kRefused) != refused ||
          (!refused && !error.empty())) {
        failure = "ranks part: " + c10::Join(" | ", errors);
      }
    }
    for (const auto& outcome : outcomes) {
      failure = failure.empty() ? outcome.difference : failure;
    }
    if (!failure.empty()) {
      report.fail(
          {"view chains",
           "views",
           "seed " + std::to_string(seed),
           c10::str("mesh ", c10::IntArrayRef(mesh_shape), ": ", text),
           failure});
      continue;
    }
    if (refused) {
      ++report.refusals[first_words(errors[0])];
    }
    count(report.chains, families, refused);
  }
}

} // namespace weft::dtensor::check
