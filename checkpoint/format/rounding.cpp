#include "checkpoint/format/rounding.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"

namespace weft::checkpoint {
namespace {

// Converts float8 tensors to float, because they support few ops.
at::Tensor with_ops(const at::Tensor& tensor) {
  return c10::elementSize(tensor.scalar_type()) == 1 ? tensor.to(at::kFloat)
                                                     : tensor;
}

// Returns true if all elements are finite. One pass finds NaNs, too, because
// aminmax() returns NaN twice if there is one.
bool are_finite(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return true;
  }
  const auto [smallest, largest] = at::aminmax(with_ops(tensor));
  return std::isfinite(smallest.item<double>()) &&
         std::isfinite(largest.item<double>());
}

// The value of an element and its index in the local tensor.
struct Element {
  std::vector<int64_t> index;
  double value = 0;
};

Element first_of(const at::Tensor& tensor, const at::Tensor& wanted) {
  Element element;
  auto at_index = tensor;
  auto left = wanted;
  while (left.dim() > 0) {
    const auto rows = left.dim() == 1 ? left : left.flatten(1).any(1);
    const auto row = rows.to(at::kByte).argmax().item<int64_t>();
    element.index.push_back(row);
    left = left.select(0, row);
    at_index = at_index.select(0, row);
  }
  element.value = with_ops(at_index).to(at::kDouble).item<double>();
  return element;
}

std::string name_of(const TensorPlace& place, const Element& element) {
  if (!place.offset || element.index.empty()) {
    return in_quotes(place.name);
  }
  auto index = element.index;
  for (size_t d = 0; d < index.size(); ++d) {
    index[d] += place.offset->at(d);
  }
  return fmt::format("{}[{}]", in_quotes(place.name), fmt::join(index, ", "));
}

// Formats `value` in single precision unless `dtype` is double, so that the
// digits that the conversion to double added do not appear.
std::string value_text(double value, at::ScalarType dtype) {
  return dtype == at::kDouble ? fmt::format("{}", value)
                              : fmt::format("{}", static_cast<float>(value));
}

// Lists the dtypes that hold `value`, of those in which models are stored.
std::string dtypes_that_hold(double value) {
  std::vector<std::string> names;
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    if (are_finite(at::scalar_tensor(value, at::kDouble).to(dtype))) {
      names.push_back(plain_name(dtype));
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

} // namespace

at::Tensor round_to(
    const at::Tensor& tensor,
    at::ScalarType to,
    const TensorPlace& place) {
  const auto from = tensor.scalar_type();
  auto result = tensor.to(to);
  if (from == to || are_finite(result)) {
    return result;
  }
  const auto lost = at::isfinite(with_ops(tensor))
                        .logical_and_(~at::isfinite(with_ops(result)));
  if (lost.any().item<bool>()) {
    const auto element = first_of(tensor, lost);
    TORCH_CHECK_VALUE(
        false,
        name_of(place, element),
        " holds ",
        value_text(element.value, from),
        " as ",
        plain_name(from),
        ", which is too large for ",
        plain_name(to),
        ". These dtypes hold it: ",
        dtypes_that_hold(element.value),
        ".");
  }
  return result;
}

std::string describe_non_finite(
    const at::Tensor& tensor,
    const TensorPlace& place) {
  if (are_finite(tensor)) {
    return "";
  }
  const auto element = first_of(tensor, ~at::isfinite(with_ops(tensor)));
  return fmt::format("{} is {}", name_of(place, element), element.value);
}

} // namespace weft::checkpoint
