#include "tests/dtensor/op_check/op_samples.h"

#include <algorithm>
#include <fstream>
#include <unordered_map>

#include <torch/torch.h>

#include "dtensor/rules/rule.h"
#include "dtensor/tensor/registration.h"

namespace weft::dtensor::check {
namespace {

using Overloads =
    std::unordered_map<std::string, std::vector<c10::OperatorHandle>>;

Overloads read_overloads() {
  Overloads all;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (name.name.starts_with("aten::") && op && op->hasSchema()) {
      all[name.name].push_back(*op);
    }
  }
  for (auto& [name, ops] : all) {
    std::ranges::sort(ops, {}, [](const auto& op) { return short_name(op); });
  }
  return all;
}

bool runs_on_cpu(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::CPU) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(
             DispatchKey::CompositeExplicitAutogradNonFunctional);
}

bool can_run(const c10::OperatorHandle& op) {
  return runs_on_cpu(op) || op.hasKernelForDispatchKey(
                                c10::DispatchKey::CompositeImplicitAutograd);
}

// "add.Tensor" or "add", which is all of its overloads.
std::vector<c10::OperatorHandle> named_ops(const std::string& name) {
  // "__and__.Tensor": no dot in a name itself.
  const size_t dot = name.find('.');
  std::vector<c10::OperatorHandle> ops;
  for (const auto& op : overloads_of("aten::" + name.substr(0, dot))) {
    const bool named = dot == std::string::npos ||
                       op.schema().overload_name() == name.substr(dot + 1) ||
                       (name.substr(dot + 1) == "default" &&
                        op.schema().overload_name().empty());
    if (named && !has_out_argument(op.schema())) {
      ops.push_back(op);
    }
  }
  return ops;
}

// add_.Tensor of add.Tensor with arguments of the same types.
std::optional<c10::OperatorHandle> inplace_form(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  auto form = c10::Dispatcher::singleton().findSchema(
      {schema.name() + "_", schema.overload_name()});
  if (!form || form->schema().arguments().size() != schema.arguments().size()) {
    return std::nullopt;
  }
  return form;
}

bool same_types(
    const c10::FunctionSchema& form,
    const c10::FunctionSchema& base) {
  for (size_t i = 0; i < base.arguments().size(); ++i) {
    if (form.arguments()[i].name() != base.arguments()[i].name() ||
        *form.arguments()[i].real_type() != *base.arguments()[i].real_type()) {
      return false;
    }
  }
  return true;
}

// add.out of add.Tensor: the same arguments, then those to write to. Two read
// what they should only write: a loss that has to come in its unreduced sizes,
// a sum that is added to what was there.
std::optional<c10::OperatorHandle> out_form(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  if (schema.name() == "aten::binary_cross_entropy" ||
      schema.name() == "aten::_compute_linear_combination") {
    return std::nullopt;
  }
  for (const auto& form : overloads_of(schema.name())) {
    const auto& arguments = form.schema().arguments();
    size_t outs = 0;
    for (const auto& argument : arguments) {
      outs += argument.is_out();
    }
    if (outs > 0 && arguments.size() == schema.arguments().size() + outs &&
        same_types(form.schema(), schema)) {
      return form;
    }
  }
  return std::nullopt;
}

class Loader {
 public:
  Loader(const std::regex& filter, Report& report)
      : filter_(filter), report_(report) {}

  void read(const std::filesystem::path& path) {
    std::ifstream file(path);
    int64_t number = 0;
    std::vector<std::string> ops;
    for (std::string text; std::getline(file, text);) {
      const auto where =
          path.filename().string() + ":" + std::to_string(++number);
      try {
        if (auto line = parse_line(text, where)) {
          if (line->ops.empty()) {
            line->ops = ops;
          }
          ops = line->ops;
          const auto shared = std::make_shared<const SampleLine>(*line);
          for (const auto& op : ops) {
            add(shared, op);
          }
        }
      } catch (const std::exception& error) {
        report_.fail({"samples", "", where, text, message_of(error)});
      }
    }
  }

  std::vector<CheckedOp> take() {
    std::vector<CheckedOp> list;
    for (auto& [name, op] : ops_) {
      list.push_back(std::move(op));
    }
    return list;
  }

 private:
  void add(
      const std::shared_ptr<const SampleLine>& shared,
      const std::string& name) {
    const auto& line = *shared;
    const auto overloads = named_ops(name);
    std::string why = overloads.empty() ? "no such op" : "";
    bool any = false;
    bool wanted = overloads.empty();
    for (const auto& op : overloads) {
      if (!std::regex_search(short_name(op), filter_)) {
        continue;
      }
      wanted = true;
      std::string misfit;
      auto arguments = bind_arguments(line, op.schema(), misfit);
      if (!arguments || !can_run(op)) {
        why += short_name(op) + ": " + (arguments ? "no CPU kernel" : misfit) +
               "; ";
        continue;
      }
      Sample sample{
          op, std::move(*arguments), line.where, line.text, shared, op};
      const auto error = try_run(sample);
      if (!error.empty()) {
        why += short_name(op) + ": " + error + "; ";
        continue;
      }
      any = true;
      add_forms(sample);
      put(std::move(sample));
    }
    if (!any && wanted) {
      report_.fail({"samples", name, line.where, line.text, why});
    }
  }

  // In place and out=: where they run. They cannot write to a tensor that is
  // broadcast, or of another dtype.
  void add_forms(const Sample& sample) {
    Sample written = sample;
    written.is_form = true;
    if (const auto form = inplace_form(sample.op)) {
      written.op = *form;
      if (try_run(written).empty()) {
        put(written);
      }
    }
    const auto form = out_form(sample.op);
    if (!form || is_inplace(sample.op.schema())) {
      return;
    }
    written.op = *form;
    written.is_out = true;
    append_outs(written, call(sample.op, cloned(sample.arguments)));
    if (try_run(written).empty()) {
      put(std::move(written));
    }
  }

  static void append_outs(
      Sample& sample,
      const std::vector<at::Tensor>& results) {
    const auto& arguments = sample.op.schema().arguments();
    size_t next = 0;
    for (size_t i = sample.arguments.size(); i < arguments.size(); ++i) {
      if (arguments[i].type()->kind() == c10::TypeKind::ListType) {
        c10::List<at::Tensor> list;
        for (; next < results.size(); ++next) {
          list.push_back(at::zeros_like(results[next]));
        }
        sample.arguments.emplace_back(list);
      } else {
        sample.arguments.emplace_back(
            next < results.size() && results[next].defined()
                ? at::zeros_like(results[next])
                : at::Tensor());
        ++next;
      }
    }
  }

  void put(Sample sample) {
    ++report_.samples;
    const auto name = sample.name();
    const auto it = ops_.try_emplace(name, CheckedOp{sample.op, {}}).first;
    it->second.samples.push_back(std::move(sample));
  }

  const std::regex& filter_;
  Report& report_;
  std::map<std::string, CheckedOp> ops_;
};

template <class Select>
std::vector<c10::OperatorHandle> select_ops(const Select& select) {
  ensure_dispatch_registered();
  std::vector<c10::OperatorHandle> ops;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (name.name.starts_with("aten::") && op && op->hasSchema() &&
        find_rule(*op) && select(*op)) {
      ops.push_back(*op);
    }
  }
  return ops;
}

} // namespace

std::vector<c10::OperatorHandle> overloads_of(const std::string& name) {
  static const Overloads all = read_overloads();
  const auto it = all.find(name);
  return it == all.end() ? std::vector<c10::OperatorHandle>() : it->second;
}

std::string try_run(const Sample& sample) {
  try {
    call(sample.op, cloned(sample.arguments));
    return {};
  } catch (const std::exception& error) {
    return message_of(error);
  }
}

Stack other_arguments(const Sample& sample) {
  std::string why;
  return bind_arguments(*sample.line, sample.bound_to.schema(), why, 107)
      .value();
}

namespace {

// Away from zero: what was positive stays so, and may be divided by.
at::Tensor whole_numbers(const at::Tensor& tensor) {
  const auto scaled = tensor.mul(3);
  return scaled.abs().ceil().mul_(scaled.sign());
}

} // namespace

Sample with_dtype(const Sample& sample, at::ScalarType dtype) {
  Sample other = sample;
  other.arguments =
      map_tensors(sample.arguments, [&](const at::Tensor& tensor, size_t) {
        if (tensor.scalar_type() != at::kDouble) {
          return tensor;
        }
        return c10::isIntegralType(dtype, /*includeBool=*/true)
                   ? whole_numbers(tensor).to(dtype)
                   : tensor.to(dtype);
      });
  other.text += c10::str(" as ", dtype);
  return other;
}

std::vector<CheckedOp> load_samples(
    const std::filesystem::path& folder,
    const std::regex& filter,
    Report& report) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") {
      paths.push_back(entry.path());
    }
  }
  std::ranges::sort(paths);
  Loader loader(filter, report);
  for (const auto& path : paths) {
    loader.read(path);
  }
  return loader.take();
}

std::vector<c10::OperatorHandle> ops_with_rules() {
  return select_ops([](const auto& op) {
    return !has_out_argument(op.schema()) && has_tensor_argument(op.schema()) &&
           runs_on_cpu(op);
  });
}

std::vector<c10::OperatorHandle> out_forms() {
  return select_ops(
      [](const auto& op) { return has_out_argument(op.schema()); });
}

std::vector<c10::OperatorHandle> ops_of_other_devices() {
  return select_ops([](const auto& op) {
    return !has_out_argument(op.schema()) && has_tensor_argument(op.schema()) &&
           !can_run(op);
  });
}

} // namespace weft::dtensor::check
