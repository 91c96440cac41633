#include "ddp/replica_difference.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <sstream>

#include <torch/torch.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ddp/gather_numbers.h"
#include "ddp/parameter_owners.h"
#include "ddp/replicas.h"
#include "mesh/error.h"
#include "mesh/exchange.h"

namespace weft::ddp {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
constexpr const char* kValuesName = "ddp replicas' values";

/// XXH3: the same on every host, which std::hash need not be.
int64_t hash_of(const void* data, size_t bytes) {
  return std::bit_cast<int64_t>(XXH3_64bits(data, bytes));
}

/// What find_replica_difference() compares, on this rank.
class Comparison {
 public:
  Comparison(
      const std::vector<NamedTensor>& tensors,
      const mesh::DeviceMesh& dp)
      : tensors_(tensors),
        dp_(dp),
        group_(dp.group(int64_t{0})),
        device_(local_part(tensors.at(0).tensor).device()) {}

  std::optional<ReplicaDifference> run() {
    const auto rows = gather(hashes());
    check_structure(rows);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      std::vector<int64_t> others;
      for (size_t rank = 1; rank < rows.size(); ++rank) {
        if (rows[rank][i + 1] != rows[0][i + 1]) {
          others.push_back(group_.ranks()[rank]);
        }
      }
      if (!others.empty()) {
        return measure(i, std::move(others));
      }
    }
    return std::nullopt;
  }

 private:
  using Row = std::vector<int64_t>;

  /// One of the structure, then one a tensor.
  Row hashes() const {
    Row row{0};
    std::ostringstream structure;
    for (const auto& item : tensors_) {
      const auto local = local_part(item.tensor).cpu().contiguous();
      structure << item.name << ' ' << local.scalar_type() << ' '
                << local.sizes() << '\n';
      row.push_back(hash_of(local.const_data_ptr(), local.nbytes()));
    }
    const auto text = structure.str();
    row[0] = hash_of(text.data(), text.size());
    return row;
  }

  /// Every rank's row.
  std::vector<Row> gather(const Row& row) const {
    const auto values = gather_numbers(group_, row, device_, kValuesName);
    const auto* data = values.const_data_ptr<int64_t>();
    std::vector<Row> rows;
    for (int64_t i = 0; i < values.size(0); ++i, data += row.size()) {
      rows.emplace_back(data, data + row.size());
    }
    return rows;
  }

  void check_structure(const std::vector<Row>& rows) const {
    for (const auto& row : rows) {
      if (row[0] != rows[0][0]) {
        check_replicas_agree(tensors_, {}, {}, dp_);
        mesh::throw_error<mesh::DisagreementError>(mesh::detail::concat(
            "[ddp] the replicas' tensors differ in their local shapes. Build "
            "the same model on every rank. (",
            dp_.describe_rank(),
            ")"));
      }
    }
  }

  ReplicaDifference measure(size_t index, std::vector<int64_t> ranks) const {
    const auto local = local_part(tensors_[index].tensor);
    auto first = local.contiguous().clone();
    group_.broadcast(first, 0, kValuesName).wait();
    const auto own = to_doubles(local);
    const auto other = to_doubles(first);
    const auto largest = (own - other).abs().nan_to_num(0, kInfinity).max();
    const Row row{
        std::bit_cast<int64_t>(largest.item<double>()),
        at::isnan(own).any().item<bool>() ? 1 : 0};
    ReplicaDifference found{
        .name = tensors_[index].name,
        .index = index,
        .first_rank = group_.ranks()[0],
        .ranks = std::move(ranks),
        .nan_ranks = {}};
    const auto rows = gather(row);
    for (int64_t rank = 0; rank < group_.size(); ++rank) {
      found.largest =
          std::max(found.largest, std::bit_cast<double>(rows[rank][0]));
      if (rows[rank][1] != 0) {
        found.nan_ranks.push_back(group_.ranks()[rank]);
      }
    }
    return found;
  }

  static at::Tensor to_doubles(const at::Tensor& tensor) {
    const auto values = tensor.cpu();
    return (values.is_complex() ? at::view_as_real(values.resolve_conj())
                                : values)
        .to(at::kDouble)
        .reshape({-1});
  }

  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  const std::vector<NamedTensor>& tensors_;
  const mesh::DeviceMesh& dp_;
  mesh::Communicator& group_;
  c10::Device device_;
};

// A difference as text, for ranks that did not take part in its comparison.

std::string to_text(const ReplicaDifference& found) {
  std::ostringstream out;
  out << found.name << '\n'
      << found.index << ' ' << found.first_rank << ' '
      << std::bit_cast<int64_t>(found.largest) << ' ' << found.ranks.size();
  for (const auto rank : found.ranks) {
    out << ' ' << rank;
  }
  out << ' ' << found.nan_ranks.size();
  for (const auto rank : found.nan_ranks) {
    out << ' ' << rank;
  }
  return out.str();
}

std::vector<int64_t> read_ranks(std::istream& in) {
  size_t count = 0;
  in >> count;
  std::vector<int64_t> ranks(count);
  for (auto& rank : ranks) {
    in >> rank;
  }
  return ranks;
}

ReplicaDifference from_text(const std::string& text) {
  std::istringstream in(text);
  ReplicaDifference found;
  std::getline(in, found.name);
  int64_t largest = 0;
  in >> found.index >> found.first_rank >> largest;
  found.largest = std::bit_cast<double>(largest);
  found.ranks = read_ranks(in);
  found.nan_ranks = read_ranks(in);
  return found;
}

/// The first difference that any rank of the group has found.
void share_over(
    mesh::Communicator& group,
    c10::Device device,
    std::optional<ReplicaDifference>& found) {
  const auto first =
      at::full(
          {1}, found ? static_cast<int64_t>(found->index) : kNone, at::kLong)
          .to(device);
  group.all_reduce(first, mesh::ReduceOp::kMin, kValuesName).wait();
  const auto index = first.item<int64_t>();
  if (index == kNone) {
    return;
  }
  const bool is_own = found && static_cast<int64_t>(found->index) == index;
  const auto texts = mesh::all_gather_text(
      group, is_own ? to_text(*found) : std::string(), kValuesName, device);
  found =
      from_text(*std::find_if(texts.begin(), texts.end(), [](const auto& text) {
        return !text.empty();
      }));
}

bool is_imagined(const mesh::DeviceMesh& dp) {
  return dp.group(int64_t{0}).backend() == "fake";
}

std::string list(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

} // namespace

std::optional<ReplicaDifference> find_replica_difference(
    const std::vector<NamedTensor>& tensors,
    const mesh::DeviceMesh& dp) {
  if (tensors.empty() || dp.size() == 1 || is_imagined(dp)) {
    return std::nullopt;
  }
  const at::NoGradGuard no_grad;
  auto found = Comparison(tensors, dp).run();
  const auto root = dp.root();
  const auto device = local_part(tensors[0].tensor).device();
  for (const auto& name : root.mesh_dim_names()) {
    if (!dp.has_mesh_dim(name) && root.size(name) > 1) {
      share_over(root.group(name), device, found);
    }
  }
  return found;
}

void check_replicas_equal(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const std::set<std::string>& ignore) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::vector<NamedTensor>& all) {
    std::copy_if(
        all.begin(),
        all.end(),
        std::back_inserter(tensors),
        [&](const NamedTensor& item) { return !ignore.contains(item.name); });
  };
  const auto parameters = parameters_of(module);
  add(parameters);
  const size_t buffers_begin = tensors.size();
  add(buffers_of(module));
  const auto found = find_replica_difference(tensors, dp);
  if (!found) {
    return;
  }
  const ParameterOwners owners(module);
  std::string owner;
  for (const auto& each : owners.of(tensors[found->index].tensor)) {
    owner += (owner.empty() ? " of " : ", ") + describe(each);
  }
  mesh::throw_error<mesh::DisagreementError>(mesh::detail::concat(
      "[ddp] the replicas differ: ",
      found->index < buffers_begin ? "parameter " : "buffer ",
      found->name,
      owner,
      " has other values on ",
      list(found->ranks),
      " than on rank ",
      found->first_rank,
      "; the largest difference is ",
      found->largest,
      found->nan_ranks.empty()
          ? ""
          : ", and it holds a NaN on " + list(found->nan_ranks),
      ". Take the same optimizer steps on every rank and change parameters "
      "nowhere else, or start again from a checkpoint. (",
      dp.describe_rank(),
      ")"));
}

} // namespace weft::ddp
