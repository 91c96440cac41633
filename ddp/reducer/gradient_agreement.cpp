#include "ddp/reducer/gradient_agreement.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

constexpr int64_t kNotReady = -1;

struct Explanation {
  GradientProblem problem;
  const char* what;
  const char* remedy;
};

/// Ordered by importance: the error shows the first problem that any rank has.
constexpr std::array kExplanations{
    Explanation{
        GradientProblem::kModuleChanged,
        "the module has new parameters since it was wrapped (this is the "
        "module's first parameter)",
        "That rank's error names what changed. Wrap the model again."},
    Explanation{
        GradientProblem::kNoForward,
        "backward without a forward through DistributedDataParallel: gradients "
        "became ready",
        "Call the wrapped model, not module(), or run such passes under "
        "no_sync()."},
    Explanation{
        GradientProblem::kTwice,
        "a gradient became ready twice in one backward",
        "A parameter used both inside and outside of a nested backward "
        "(re-entrant checkpointing) does that, so does a new backward after "
        "one that failed, without a forward between. If the graph is the same "
        "in every step, set static_graph."},
    Explanation{
        GradientProblem::kGraphChanged,
        "the graph is not that of the first step",
        "static_graph promises that every step uses the same parameters, as "
        "often. Leave it out, and set find_unused_parameters if some are not "
        "used in each step."},
    Explanation{
        GradientProblem::kMissing,
        "no gradient in this backward",
        "Use every parameter in forward and in the loss on every rank, set "
        "find_unused_parameters, freeze those that are not trained with "
        "requires_grad_(false) before the model is wrapped, or run partial "
        "backward passes under no_sync()."},
    Explanation{
        GradientProblem::kUnusable,
        "a gradient that cannot be reduced: it is sparse and was dense or the "
        "reverse, is part of a graph, or has another shape or dtype than its "
        "parameter had",
        "That rank's error says what is wrong with it."},
    Explanation{
        GradientProblem::kWrongHookResult,
        "the comm hook failed, or returned something else than a tensor of the "
        "bucket's shape, dtype and device",
        "Return bucket.buffer or a tensor like it."},
    Explanation{
        GradientProblem::kNotFinite,
        "a gradient holds NaN or infinity",
        "Look at the inputs and the loss of that rank, lower the learning "
        "rate or clip; leave check_for_nan_in_grad out if the step is to be "
        "skipped by other means."}};

at::Tensor gather_rows(
    const Replicas& replicas,
    const std::vector<int64_t>& row) {
  return gather_numbers(
      replicas.dp.group(int64_t{0}),
      row,
      replicas.device,
      "ddp gradient order");
}

std::vector<int64_t> codes_of(const std::vector<GradientProblem>& problems) {
  std::vector<int64_t> codes;
  for (const auto problem : problems) {
    codes.push_back(static_cast<int64_t>(problem));
  }
  return codes;
}

/// Returns the ranks and their parameters with `problem`, e.g. "rank 1:
/// a.weight, a.bias; rank 3: a.bias". Empty if there are none. `begin` is the
/// column of the first parameter.
std::string list_ranks(
    const Replicas& replicas,
    const at::Tensor& rows,
    int64_t begin,
    GradientProblem problem) {
  const auto values = rows.accessor<int64_t, 2>();
  const auto& ranks = replicas.dp.group(int64_t{0}).ranks();
  std::string text;
  for (int64_t rank = 0; rank < values.size(0); ++rank) {
    std::string names;
    for (size_t i = 0; i < replicas.names.size(); ++i) {
      if (values[rank][begin + static_cast<int64_t>(i)] ==
          static_cast<int64_t>(problem)) {
        names += (names.empty() ? "" : ", ") + replicas.names[i];
      }
    }
    if (!names.empty()) {
      // A single row is this rank's, e.g. in a fake process group.
      const auto shown = values.size(0) == 1 ? replicas.dp.rank() : ranks[rank];
      text += (text.empty() ? "rank " : "; rank ") + std::to_string(shown) +
              ": " + names;
    }
  }
  return text;
}

std::string list_modules(
    const Replicas& replicas,
    const at::Tensor& rows,
    int64_t begin,
    GradientProblem problem) {
  const auto values = rows.accessor<int64_t, 2>();
  std::set<std::string> listed;
  std::string text;
  for (size_t i = 0; i < replicas.names.size(); ++i) {
    for (int64_t rank = 0; rank < values.size(0); ++rank) {
      if (values[rank][begin + static_cast<int64_t>(i)] ==
              static_cast<int64_t>(problem) &&
          listed.insert(replicas.modules[i]).second) {
        text += (text.empty() ? "" : ", ") + replicas.modules[i];
      }
    }
  }
  return text;
}

void check_no_problem(
    const Replicas& replicas,
    const at::Tensor& rows,
    int64_t begin) {
  for (const auto& each : kExplanations) {
    const auto found = list_ranks(replicas, rows, begin, each.problem);
    WEFT_CHECK(
        found.empty(),
        "ddp",
        mesh::ErrorContext{replicas.dp.describe_rank()},
        each.what,
        ", for parameters on ",
        found,
        "; of ",
        list_modules(replicas, rows, begin, each.problem),
        ". ",
        each.remedy);
  }
}

/// Returns the kind of a parameter's gradient. Throws if ranks have different
/// kinds; ranks without a gradient do not count.
int64_t
agree_on_kind(const Replicas& replicas, const at::Tensor& rows, size_t index) {
  const auto values = rows.accessor<int64_t, 2>();
  const auto column = static_cast<int64_t>(replicas.names.size() + index);
  const auto& ranks = replicas.dp.group(int64_t{0}).ranks();
  int64_t kind = kUnknownKind;
  int64_t first = 0;
  for (int64_t rank = 0; rank < values.size(0); ++rank) {
    const auto here = values[rank][column];
    if (here != kUnknownKind && kind != kUnknownKind && here != kind) {
      mesh::throw_error<mesh::DisagreementError>(mesh::detail::concat(
          "[ddp] the gradient of ",
          replicas.names[index],
          " is Partial or sparse on rank ",
          ranks[kind != 0 ? first : rank],
          ", but not (or not over the same mesh dims) on rank ",
          ranks[kind != 0 ? rank : first],
          ". Parallelize the model in the same way on all ranks. (",
          replicas.dp.describe_rank(),
          ")"));
    }
    if (kind == kUnknownKind) {
      kind = here;
      first = rank;
    }
  }
  return kind;
}

/// Returns the first rank with gradients. A rank that ran out of inputs has
/// none.
int64_t first_with_gradients(const at::Tensor& rows, int64_t parameters) {
  const auto values = rows.accessor<int64_t, 2>();
  for (int64_t rank = 0; rank < values.size(0); ++rank) {
    for (int64_t i = 0; i < parameters; ++i) {
      if (values[rank][i] != kNotReady) {
        return rank;
      }
    }
  }
  return 0;
}

} // namespace

AgreedOrder agree_on_order(
    const Replicas& replicas,
    const BackwardReport& report) {
  const auto n = static_cast<int64_t>(replicas.names.size());
  std::vector<int64_t> row(replicas.names.size(), kNotReady);
  for (size_t i = 0; i < report.ready.size(); ++i) {
    row[report.ready[i]] = static_cast<int64_t>(i);
  }
  row.insert(row.end(), report.kinds.begin(), report.kinds.end());
  const auto codes = codes_of(report.problems);
  row.insert(row.end(), codes.begin(), codes.end());
  const auto rows = gather_rows(replicas, row);
  check_no_problem(replicas, rows, 2 * n);
  const auto values = rows.accessor<int64_t, 2>();
  AgreedOrder agreed;
  const auto first = first_with_gradients(rows, n);
  // First come the parameters with a gradient on this rank, then those with one
  // on other ranks only, then those without any.
  std::vector<std::pair<int64_t, int64_t>> positions;
  for (int64_t i = 0; i < n; ++i) {
    agreed.kinds.push_back(
        agree_on_kind(replicas, rows, static_cast<size_t>(i)));
    const auto position = values[first][i];
    const auto behind = agreed.kinds.back() == kUnknownKind ? 3 * n : 2 * n;
    positions.emplace_back(position == kNotReady ? behind - i : position, i);
  }
  std::sort(positions.begin(), positions.end());
  for (const auto& [position, index] : positions) {
    agreed.order.push_back(static_cast<size_t>(index));
  }
  return agreed;
}

void throw_problems(
    const Replicas& replicas,
    const std::vector<GradientProblem>& problems) {
  check_no_problem(replicas, gather_rows(replicas, codes_of(problems)), 0);
  WEFT_CHECK(
      false,
      "ddp",
      mesh::ErrorContext{replicas.dp.describe_rank()},
      "a rank with another shard of the model reported a problem with a "
      "gradient. The error on that rank names the parameter.");
  std::abort();
}

} // namespace weft::ddp
