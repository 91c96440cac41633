#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::data_parallel {

/// Collects the tensors of a forward()'s output. It supports tensors, and
/// pairs, tuples, vectors, maps, optionals, variants and pointers of them at
/// any depth; numbers, enums and strings have none. For a type of your own,
/// define in its namespace
///
///   template <class Visitor>
///   void for_each_tensor(const MyOutput& output, Visitor&& visit) {
///     visit(output.logits);
///     visit(output.hidden_states); // a vector of tensors
///   }
///
/// which is to visit everything that may hold a tensor with a graph.
class OutputVisitor {
 public:
  explicit OutputVisitor(std::vector<at::Tensor>& tensors)
      : tensors_(&tensors) {}

  template <class T>
  void operator()(const T& output) const;

 private:
  std::vector<at::Tensor>* tensors_;
};

namespace detail {

/// True if the type's namespace has for_each_tensor().
template <class T>
concept SaysWhereTensorsAre = requires(const T& output, OutputVisitor visit) {
  for_each_tensor(output, visit);
};

template <class T>
concept Range = requires(const T& output) {
  output.begin() != output.end();
};

/// The standard templates that the visitor enters.
template <class T>
struct Parts : std::false_type {};
template <class... T>
struct Parts<std::pair<T...>> : std::true_type {};
template <class... T>
struct Parts<std::tuple<T...>> : std::true_type {};
template <class T>
struct Held : std::false_type {};
template <class T>
struct Held<std::optional<T>> : std::true_type {};
template <class T>
struct Held<std::shared_ptr<T>> : std::true_type {};
template <class T, class D>
struct Held<std::unique_ptr<T, D>> : std::true_type {};
template <class T>
struct Choice : std::false_type {};
template <class... T>
struct Choice<std::variant<T...>> : std::true_type {};

template <class T>
inline constexpr bool kHasNoTensors =
    std::is_arithmetic_v<T> || std::is_enum_v<T> ||
    std::is_same_v<T, std::monostate> || std::is_same_v<T, std::nullopt_t> ||
    std::is_convertible_v<const T&, std::string_view> ||
    std::is_same_v<T, std::vector<bool>::const_reference>;

} // namespace detail

template <class T>
void OutputVisitor::operator()(const T& output) const {
  if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) {
    tensors_->push_back(output);
  } else if constexpr (detail::SaysWhereTensorsAre<T>) {
    for_each_tensor(output, *this);
  } else if constexpr (detail::kHasNoTensors<T>) {
    return;
  } else if constexpr (detail::Held<T>::value) {
    if (output) {
      (*this)(*output);
    }
  } else if constexpr (detail::Parts<T>::value) {
    std::apply([&](const auto&... part) { ((*this)(part), ...); }, output);
  } else if constexpr (detail::Choice<T>::value) {
    std::visit(*this, output);
  } else if constexpr (detail::Range<T>) {
    for (const auto& part : output) {
      (*this)(part);
    }
  } else {
    static_assert(
        std::is_void_v<T>,
        "DistributedDataParallel does not know where the tensors of this type "
        "are, which forward() returns. Write for_each_tensor(const T& output, "
        "Visitor&& visit) in the namespace of the type, which calls visit() "
        "with each member that has tensors (docs/ddp.md, Outputs), or return "
        "tensors, or pairs, tuples, vectors, maps or optionals of them.");
  }
}

/// Returns all tensors of an output, in the order of the visit.
template <class T>
std::vector<at::Tensor> tensors_of(const T& output) {
  std::vector<at::Tensor> tensors;
  OutputVisitor{tensors}(output);
  return tensors;
}

} // namespace weft::data_parallel
