#include "elastic/lanes.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "mesh/communicator/reduction.h"
#include "mesh/error/error.h"

namespace weft::elastic {

void Lanes::check_enough_for(int64_t groups) const {
  WEFT_CHECK(
      !are_used() || count_ >= groups,
      "elastic",
      mesh::ErrorContext(),
      "lanes: got ",
      count_,
      ", expected at least one per replica group, of which there are ",
      groups,
      ". Set more lanes, or start fewer groups.");
}

void Lanes::divide(const std::vector<bool>& counts, int64_t rank) {
  if (!are_used()) {
    return;
  }
  check_enough_for(std::ssize(counts));
  const int64_t groups = std::ranges::count(counts, true);
  rank_ = rank;
  lanes_of_.clear();
  int64_t position = 0;
  for (const bool each : counts) {
    const int64_t next = position + (each ? 1 : 0);
    lanes_of_.push_back(
        {.begin = count_ * position / groups, .end = count_ * next / groups});
    position = next;
  }
}

std::pair<int64_t, int64_t> Lanes::own() const {
  const auto& lanes = lanes_of_[static_cast<size_t>(rank_)];
  return lanes.size() > 0 ? std::pair(lanes.begin, lanes.end)
                          : std::pair<int64_t, int64_t>(0, 1);
}

void Lanes::begin_step() {
  current_.reset();
  next_ = are_used() ? own().first : 0;
  kept_.clear();
}

void Lanes::enter(int64_t lane) {
  const auto [begin, end] = own();
  WEFT_CHECK(
      !current_,
      "elastic",
      mesh::ErrorContext(),
      "Lane ",
      lane,
      " was entered in lane ",
      current_.value_or(0),
      ". Destroy the result of Step::enter_lane() before the next one.");
  WEFT_CHECK(
      lane == next_ && lane < end,
      "elastic",
      mesh::ErrorContext(),
      "Lane ",
      lane,
      " was entered, but the next one of this group is ",
      next_ < end ? std::to_string(next_) : "in the next step",
      ". Enter each lane of Step::lanes(), here [",
      begin,
      ", ",
      end,
      "), once and in order.");
  current_ = lane;
  ++next_;
  calls_.clear();
}

void Lanes::check_complete() const {
  if (!are_used()) {
    return;
  }
  const auto [begin, end] = own();
  WEFT_CHECK(
      next_ == begin || next_ == end,
      "elastic",
      mesh::ErrorContext(),
      "The step ends, but lane ",
      next_,
      " was not entered. Enter each lane of Step::lanes(), here [",
      begin,
      ", ",
      end,
      "), once and in order.");
  WEFT_CHECK(
      next_ == begin || kept_.empty(),
      "elastic",
      mesh::ErrorContext(),
      "\"",
      kept_.empty() ? "" : kept_.begin()->first,
      "\" was added in an earlier lane, but not in lane ",
      end - 1,
      ", the last one of this group. Add the same tensors in each lane.");
}

bool Lanes::has_one_each() const {
  return std::ranges::all_of(
      lanes_of_, [](const Share& lanes) { return lanes.size() == 1; });
}

/// Returns the rank that has all lanes, if one has. Only its group's gradients
/// count then.
std::optional<int64_t> Lanes::only_rank() const {
  const auto it = std::ranges::find_if(
      lanes_of_, [this](const Share& lanes) { return lanes.size() == count_; });
  return it == lanes_of_.end() ? std::nullopt
                               : std::optional<int64_t>(it - lanes_of_.begin());
}

std::string Lanes::key_of(std::string_view name) {
  const auto calls = calls_.try_emplace(std::string(name), 0).first->second++;
  return calls == 0 ? std::string(name)
                    : mesh::detail::concat(name, " (", calls + 1, ")");
}

namespace {

void copy_back(const at::Tensor& flat, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (!flat.is_alias_of(tensor)) {
    tensor.copy_(flat.view_as(tensor));
  }
}

/// A sum over the ranks of rows of equal size, added in the order of ranks and,
/// within a rank, of its rows.
class RowSum {
 public:
  /// `rows_of` is the number of rows on each rank. At least one number is not
  /// 0.
  RowSum(
      mesh::Communicator group,
      std::vector<int64_t> rows_of,
      at::Tensor sum,
      std::string_view name)
      : group_(std::move(group)),
        rows_of_(std::move(rows_of)),
        sum_(std::move(sum)),
        name_(name) {}

  void start(const std::vector<at::Tensor>& rows) {
    std::vector<at::Tensor> sent;
    for (int64_t peer = 0; peer < group_.size(); ++peer) {
      std::vector<at::Tensor> shares;
      shares.reserve(rows.size());
      for (const auto& row : rows) {
        shares.push_back(share_of(row, peer));
      }
      sent.push_back(
          shares.empty()       ? sum_.slice(0, 0, 0)
          : shares.size() == 1 ? shares.front()
                               : at::cat(shares));
    }
    const auto own = share_of(sum_, group_.rank());
    const auto all_rows =
        std::accumulate(rows_of_.begin(), rows_of_.end(), int64_t{0});
    received_ = at::empty({all_rows, own.numel()}, sum_.options());
    std::vector<at::Tensor> outputs;
    int64_t row = 0;
    for (const auto each : rows_of_) {
      outputs.push_back(received_.slice(0, row, row + each).view(-1));
      row += each;
    }
    work_ = group_.all_to_all(outputs, sent, name_);
  }

  void wait() {
    work_.wait();
    const auto own = at::empty_like(share_of(sum_, group_.rank()));
    if (own.numel() > 0) {
      mesh::reduce_rows(own, received_, mesh::ReduceOp::kSum);
    }
    std::vector<at::Tensor> shares;
    for (int64_t peer = 0; peer < group_.size(); ++peer) {
      shares.push_back(share_of(sum_, peer));
    }
    group_.all_gather_uneven(shares, own, name_).wait();
  }

 private:
  at::Tensor share_of(const at::Tensor& flat, int64_t rank) const {
    const int64_t size = flat.numel();
    return flat.slice(
        0, size * rank / group_.size(), size * (rank + 1) / group_.size());
  }

  mesh::Communicator group_;
  std::vector<int64_t> rows_of_;
  at::Tensor sum_;
  std::string name_;
  at::Tensor received_;
  mesh::Work work_;
};

} // namespace

std::vector<at::Tensor> Lanes::take_earlier(
    const std::string& key,
    const at::Tensor& own,
    std::string_view name) {
  auto rows = std::move(kept_[key]);
  kept_.erase(key);
  const mesh::ErrorContext where{std::string(name)};
  for (const auto& row : rows) {
    WEFT_CHECK(
        row.numel() == own.numel() && row.scalar_type() == own.scalar_type(),
        "elastic",
        where,
        "A lane has ",
        row.numel(),
        " elements of ",
        row.scalar_type(),
        ", but lane ",
        *current_,
        " has ",
        own.numel(),
        " of ",
        own.scalar_type(),
        ". Add the same tensors in each lane.");
  }
  const auto [begin, end] = this->own();
  WEFT_CHECK(
      std::ssize(rows) == end - begin - 1,
      "elastic",
      where,
      "It is added in lane ",
      *current_,
      ", but in ",
      std::ssize(rows),
      " of ",
      end - begin - 1,
      " earlier lanes of this group. Add the same tensors in each lane.");
  return rows;
}

std::function<void()> Lanes::start_sum(
    mesh::Communicator group,
    const at::Tensor& tensor,
    std::string_view name,
    const std::function<std::function<void()>()>& send_sum) {
  const at::NoGradGuard no_grad;
  const auto key = key_of(name);
  if (!is_last()) {
    kept_[key].push_back(tensor.clone(at::MemoryFormat::Contiguous).view(-1));
    return [] {};
  }
  const auto flat = tensor.contiguous().view(-1);
  auto rows = take_earlier(key, flat, name);
  if (has_one_each() && group.backend() == "shm") {
    auto work = group.all_reduce(tensor, mesh::ReduceOp::kSum, name);
    return [work]() mutable { work.wait(); };
  }
  if (const auto rank = only_rank()) {
    if (*rank == rank_ && !rows.empty()) {
      rows.push_back(flat);
      mesh::reduce_rows(flat, at::stack(rows), mesh::ReduceOp::kSum);
      copy_back(flat, tensor);
    }
    return send_sum();
  }
  std::vector<int64_t> rows_of;
  for (const auto& lanes : lanes_of_) {
    rows_of.push_back(lanes.size());
  }
  if (rows_of[static_cast<size_t>(rank_)] > 0) {
    rows.push_back(flat);
  }
  auto sum = std::make_shared<RowSum>(
      std::move(group), std::move(rows_of), flat, name);
  sum->start(rows);
  return [sum, tensor, flat] {
    sum->wait();
    copy_back(flat, tensor);
  };
}

} // namespace weft::elastic
