#include "dtensor/rules/rule.h"

#include <memory>
#include <mutex>

#include <c10/util/Exception.h>

#include "dtensor/tensor/parameter_info.h"

namespace weft::dtensor {
namespace {

RuleTable make_table() {
  RuleTable table;
  add_pointwise_rules(table);
  add_view_rules(table);
  add_view_backward_rules(table);
  add_matmul_rules(table);
  add_attention_rules(table);
  add_convolution_rules(table);
  add_pooling_rules(table);
  add_padding_rules(table);
  add_resampling_rules(table);
  add_fft_rules(table);
  add_joining_rules(table);
  add_embedding_rules(table);
  add_reduction_rules(table);
  add_diagonal_rules(table);
  add_search_rules(table);
  add_normalization_rules(table);
  add_linalg_rules(table);
  add_class_loss_rules(table);
  add_along_dim_rules(table);
  add_indexing_rules(table);
  add_scattering_rules(table);
  add_factory_rules(table);
  return table;
}

const RuleTable& built_in_rules() {
  static const RuleTable table = make_table();
  return table;
}

// Note [Rules of own ops]
// ~~~~~~~~~~~~~~~~~~~~~~~
// libtorch's dispatcher makes ops global to the process, so their rules are
// too. The built-in rules are a table that the first lookup creates. The rules
// that users register are in a separate map, guarded by a mutex. Rules are only
// added and never removed, so that a pointer to a rule stays valid. A rule is
// looked up only if no plan is cached.
struct RegisteredRules {
  std::mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<const Rule>> rules;
};

RegisteredRules& registered_rules() {
  static const auto registered = std::make_unique<RegisteredRules>();
  return *registered;
}

int64_t normalized_dim(int64_t dim, int64_t ndim) {
  return dim < 0 ? dim + ndim : dim;
}

} // namespace

int64_t OpCall::dim_argument(size_t index, int64_t ndim) const {
  return normalized_dim(arguments[index].toInt(), ndim);
}

std::vector<int64_t> OpCall::dims_argument(size_t index, int64_t ndim) const {
  std::vector<int64_t> dims;
  if (arguments[index].isInt()) {
    dims.push_back(normalized_dim(arguments[index].toInt(), ndim));
  } else if (!arguments[index].isNone()) {
    for (const int64_t dim : arguments[index].toIntVector()) {
      dims.push_back(normalized_dim(dim, ndim));
    }
  }
  return dims;
}

bool OpCall::is_inplace() const {
  const auto& returns = op.schema().returns();
  return !returns.empty() && returns[0].alias_info() &&
         returns[0].alias_info()->isWrite();
}

void RuleTable::add(std::string_view names, const Rule& rule) {
  while (!names.empty()) {
    const size_t end = names.find(' ');
    const auto name = names.substr(0, end);
    names = end == std::string_view::npos ? "" : names.substr(end + 1);
    if (!name.empty()) {
      const auto full = "aten::" + std::string(name);
      index_[full] = rules_.size();
      rules_.emplace_back(full, rule);
    }
  }
}

const Rule* RuleTable::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &rules_[it->second].second;
}

std::vector<std::pair<std::string, const Rule*>> RuleTable::list() const {
  std::vector<std::pair<std::string, const Rule*>> list;
  for (const auto& [name, rule] : rules_) {
    list.emplace_back(name, &rule);
  }
  return list;
}

// Returns the functional overload of an out= overload: "Tensor_mode" for
// "out_mode", and "dim" for "dim_out".
std::string without_out(std::string overload) {
  if (overload.ends_with("_out")) {
    overload.resize(overload.size() - std::string_view("_out").size());
  } else if (overload.starts_with("out_")) {
    overload.replace(0, std::string_view("out").size(), "Tensor");
  }
  return overload;
}

bool add_registered_rule(const std::string& op, const Rule& rule) {
  auto& all = registered_rules();
  const std::lock_guard lock(all.mutex);
  return all.rules.emplace(op, std::make_unique<const Rule>(rule)).second;
}

const Rule* find_registered_rule(const c10::OperatorHandle& op) {
  auto& all = registered_rules();
  const std::lock_guard lock(all.mutex);
  if (all.rules.empty()) {
    return nullptr;
  }
  for (const auto& name :
       {c10::toString(op.operator_name()), op.operator_name().name}) {
    if (const auto it = all.rules.find(name); it != all.rules.end()) {
      return it->second.get();
    }
  }
  return nullptr;
}

const Rule* find_rule(const c10::OperatorHandle& op) {
  if (const Rule* rule = find_registered_rule(op)) {
    return rule;
  }
  const auto& name = op.schema().name();
  const auto& overload = op.schema().overload_name();
  std::vector<std::string> names{name};
  if (name.ends_with('_')) {
    names.push_back(name.substr(0, name.size() - 1));
  }
  for (const auto& each : names) {
    for (const auto& full :
         {each + "." + overload, each + "." + without_out(overload), each}) {
      if (const Rule* rule = built_in_rules().find(full)) {
        return rule;
      }
    }
  }
  return nullptr;
}

std::vector<std::pair<std::string, const Rule*>> all_rules() {
  return built_in_rules().list();
}

std::string describe_arguments(const OpCall& call) {
  std::string text = "(";
  const auto add = [&](const TensorArgument& input, const char* prefix) {
    text += text.size() > 1 ? ", " : "";
    const auto name = parameter_name(input.tensor);
    text += prefix + (name.empty() ? "" : "\"" + name + "\" ");
    text += c10::str(input.sizes()) + " ";
    text += input.spec ? to_string(input.spec->placements()) : "plain";
  };
  for (const auto& input : call.tensors) {
    add(input, "");
  }
  for (const auto& out : call.outs) {
    add(out, "out ");
  }
  return text + ")";
}

} // namespace weft::dtensor
