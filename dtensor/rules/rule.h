#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// A tensor argument of an op call, in the order of the schema, with lists
/// flattened. A plain tensor without dims has no spec and counts as replicated.
struct TensorArgument {
  size_t argument;
  /// The position in a tensor list, or -1.
  int64_t list_index;
  at::Tensor tensor;
  std::optional<DTensorSpec> spec;

  c10::IntArrayRef sizes() const { return tensor.sizes(); }
  int64_t dim() const { return tensor.dim(); }
};

/// The part of an op call that a rule sees: global shapes and plain arguments,
/// but no data.
struct OpCall {
  const c10::OperatorHandle& op;
  c10::ArrayRef<c10::IValue> arguments;
  /// The tensors that the op reads. out= tensors are separate.
  std::vector<TensorArgument> tensors;
  DTensorSpec common;
  /// The tensors that the op only writes to. Rules do not need them.
  std::vector<TensorArgument> outs = {};

  std::string_view name() const { return op.schema().name(); }
  const mesh::DeviceMesh& mesh() const { return common.mesh(); }
  /// Returns a dim argument, made non-negative for a tensor of `ndim` dims.
  int64_t dim_argument(size_t index, int64_t ndim) const;
  std::vector<int64_t> dims_argument(size_t index, int64_t ndim) const;
  bool is_inplace() const;
};

/// The metadata of a global output tensor.
struct OutputMeta {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

/// A way to run an op on one mesh dim: if the inputs (TensorArguments) have
/// these placements, each rank's local op computes the outputs with theirs.
struct Strategy {
  /// One placement per output, or one for all outputs.
  Placements outputs;
  Placements inputs;
  /// True if the strategy is valid only for even chunks. Other strategies are
  /// valid for any sharding that all sharded tensors share.
  bool chunked_only = false;
};

/// Facts about the mesh dim for which a rule is asked.
struct StrategyContext {
  int64_t mesh_dim;
  int64_t shards;
  /// The number of ranks of the mesh. A dim that it divides has aligned shards
  /// for any nesting.
  int64_t all_shards;
  const std::vector<OutputMeta>& outputs;
};

/// The input of `Rule::localize`: a call whose placements are chosen, on this
/// rank.
struct LocalCall {
  const OpCall& call;
  /// One spec per TensorArgument. Plain ones are on the mesh without dims.
  std::vector<DTensorSpec> input_specs;
  std::vector<DTensorSpec> output_specs;
  /// The offset and sizes of this rank's part of each tensor.
  std::vector<LocalBox> inputs;
  std::vector<LocalBox> outputs;
};

/// The sharding rule of an op family as data: the metadata of its outputs, and
/// its strategies per mesh dim. The strategy that replicates everything always
/// exists.
struct Rule {
  using Strategies = std::function<
      std::vector<Strategy>(const OpCall&, const StrategyContext&)>;
  using Infer = std::function<std::vector<OutputMeta>(const OpCall&)>;
  /// The arguments to change for the local call: position and value.
  using LocalArguments = std::vector<std::pair<size_t, c10::IValue>>;
  using Localize = std::function<LocalArguments(const LocalCall&)>;

  /// Null means that the op runs on full tensors only and its results are
  /// replicated.
  Strategies strategies = {};
  /// Null means that the op's meta kernel is used, or the result itself if it
  /// is replicated. No value means that only the data determine the sizes: the
  /// op then runs on full tensors.
  Infer infer = {};
  Localize localize = {};
  /// True if the outputs do not depend on the inputs' values: inputs are never
  /// redistributed.
  bool value_free = false;
  /// True if the output shares memory with the first input.
  bool view = false;
  /// True if the op returns the same elements with other sizes. Local tensors
  /// that do not allow this are made contiguous first.
  bool reshapes = false;
};

/// Returns the rule of an op by its name with overload
/// ("aten::sum.dim_IntList"; looked up first) or without ("aten::add"). Null if
/// there is none.
const Rule* find_rule(const c10::OperatorHandle& op);

/// Returns the rule that register_sharding() gave an op, or null.
const Rule* find_registered_rule(const c10::OperatorHandle& op);

/// Stores the rule that find_registered_rule() returns, for
/// register_sharding(). Returns false if `op` already had one.
bool add_registered_rule(const std::string& op, const Rule& rule);

/// Returns the names and rules of all built-in rules, for tests.
std::vector<std::pair<std::string, const Rule*>> all_rules();

/// Returns "(S(0), R)": the placements of a call's tensors, for messages.
std::string describe_arguments(const OpCall& call);

/// The table to which each family of rules (rules/*.cpp) adds its rules.
class RuleTable {
 public:
  /// Adds a rule. `names` are separated by spaces, without "aten::", with
  /// overload ("sum.dim_IntList") or without (all overloads that have no rule
  /// of their own). In-place and out= overloads use the rule of their
  /// functional op.
  void add(std::string_view names, const Rule& rule);
  const Rule* find(const std::string& name) const;
  std::vector<std::pair<std::string, const Rule*>> list() const;

 private:
  std::vector<std::pair<std::string, Rule>> rules_;
  std::unordered_map<std::string, size_t> index_;
};

void add_pointwise_rules(RuleTable& table);
void add_view_rules(RuleTable& table);
void add_view_backward_rules(RuleTable& table);
void add_matmul_rules(RuleTable& table);
void add_attention_rules(RuleTable& table);
void add_convolution_rules(RuleTable& table);
void add_pooling_rules(RuleTable& table);
void add_fft_rules(RuleTable& table);
void add_joining_rules(RuleTable& table);
void add_embedding_rules(RuleTable& table);
void add_padding_rules(RuleTable& table);
void add_resampling_rules(RuleTable& table);
void add_reduction_rules(RuleTable& table);
void add_diagonal_rules(RuleTable& table);
void add_search_rules(RuleTable& table);
void add_normalization_rules(RuleTable& table);
void add_linalg_rules(RuleTable& table);
void add_class_loss_rules(RuleTable& table);
void add_along_dim_rules(RuleTable& table);
void add_indexing_rules(RuleTable& table);
void add_scattering_rules(RuleTable& table);
void add_factory_rules(RuleTable& table);

} // namespace weft::dtensor
