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

/// One tensor argument of an op call, in the order of the schema; lists are
/// laid out flat. Plain 0-dim tensors have no spec and count as replicated.
struct TensorArgument {
  size_t argument;
  /// Position in a tensor list, or -1.
  int64_t list_index;
  at::Tensor tensor;
  std::optional<DTensorSpec> spec;

  c10::IntArrayRef sizes() const { return tensor.sizes(); }
  int64_t dim() const { return tensor.dim(); }
};

/// What a rule sees of an op call: global shapes and plain arguments, never
/// data.
struct OpCall {
  const c10::OperatorHandle& op;
  c10::ArrayRef<c10::IValue> arguments;
  /// What the op reads; out= tensors stand apart.
  std::vector<TensorArgument> tensors;
  DTensorSpec common;
  /// Tensors that the op only writes to: rules need not know of them.
  std::vector<TensorArgument> outs = {};

  std::string_view name() const { return op.schema().name(); }
  const mesh::DeviceMesh& mesh() const { return common.mesh(); }
  /// A dim argument, made non-negative for a tensor of `ndim` dims.
  int64_t dim_argument(size_t index, int64_t ndim) const;
  std::vector<int64_t> dims_argument(size_t index, int64_t ndim) const;
  bool is_inplace() const;
};

/// A global tensor that an op makes.
struct OutputMeta {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

/// One way to run an op on one mesh dim: with the inputs (TensorArguments)
/// placed so, each rank's local op gives the outputs placed so.
struct Strategy {
  /// One an output, or a single one for all of them.
  Placements outputs;
  Placements inputs;
  /// Holds only where dims are cut in equal parts by the chunk rule. Others
  /// hold for any cut that all the sharded tensors share.
  bool chunked_only = false;
};

/// What a rule may ask about the mesh dim it is asked for.
struct StrategyContext {
  int64_t mesh_dim;
  int64_t shards;
  /// All the mesh's ranks: what a dim must divide by so that any nesting of
  /// shards has aligned edges.
  int64_t all_shards;
  const std::vector<OutputMeta>& outputs;
};

/// What `Rule::localize` sees: a call whose placements are chosen, on this
/// rank.
struct LocalCall {
  const OpCall& call;
  /// One a TensorArgument; on the mesh of no dims for plain ones.
  std::vector<DTensorSpec> input_specs;
  std::vector<DTensorSpec> output_specs;
  /// This rank's part of each: offset and sizes.
  std::vector<LocalBox> inputs;
  std::vector<LocalBox> outputs;
};

/// The sharding rule of an op family, as data: how its outputs look, and which
/// single-mesh-dim strategies exist beside all-replicated, which every rule
/// has.
struct Rule {
  using Strategies = std::function<
      std::vector<Strategy>(const OpCall&, const StrategyContext&)>;
  using Infer = std::function<std::vector<OutputMeta>(const OpCall&)>;
  /// Arguments to change for the local call: position and value.
  using LocalArguments = std::vector<std::pair<size_t, c10::IValue>>;
  using Localize = std::function<LocalArguments(const LocalCall&)>;

  /// Null: the op runs on whole tensors only, and every rank has its result.
  Strategies strategies = {};
  /// Null: ask the op's meta kernel, or the result itself where every rank has
  /// it whole. Returning nothing says that only values tell the sizes: then the
  /// op runs on whole tensors.
  Infer infer = {};
  Localize localize = {};
  /// The outputs do not depend on the inputs' values: inputs never move.
  bool value_free = false;
  /// The output shares memory with the first input.
  bool view = false;
  /// The op shows the same elements under other sizes; local tensors that do
  /// not allow that are made contiguous first.
  bool reshapes = false;
};

/// The rule of an op by its name without overload ("aten::add") or with
/// ("aten::sum.dim_IntList"; looked for first); null if there is none.
const Rule* find_rule(const c10::OperatorHandle& op);

/// The rule that register_sharding() gave an op, or null.
const Rule* find_registered_rule(const c10::OperatorHandle& op);

/// Gives an op the rule that find_registered_rule() finds, for
/// register_sharding(); `op` as there. Returns whether it had none.
bool add_registered_rule(const std::string& op, const Rule& rule);

/// All built-in rules, for tests: name and rule.
std::vector<std::pair<std::string, const Rule*>> all_rules();

/// "(S(0), R)": the placements of a call's tensors, for messages.
std::string describe_arguments(const OpCall& call);

/// Where the rules of a family are put, see rules/*.cpp.
class RuleTable {
 public:
  /// `names`: separated by spaces, "aten::" implied, with overload
  /// ("sum.dim_IntList") or without (all overloads that have no rule of their
  /// own). In-place and out= forms follow the op that they are a form of.
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
