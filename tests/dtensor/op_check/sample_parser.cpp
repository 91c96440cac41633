#include "tests/dtensor/op_check/sample_parser.h"

#include <cctype>
#include <charconv>
#include <limits>
#include <map>

#include <torch/torch.h>

#include "tests/dtensor/parts.h"

namespace weft::dtensor::check {
namespace {

using c10::IValue;

// ---- text -------------------------------------------------------------------

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& where)
      : text_(text), where_(where) {}

  bool at_end() {
    skip_spaces();
    return position_ == text_.size();
  }

  SampleArgument argument() {
    skip_spaces();
    const size_t start = position_;
    const auto name = word();
    if (!name.empty() && take('=')) {
      return {std::string(name), value()};
    }
    position_ = start;
    return {"", value()};
  }

  bool take(char c) {
    skip_spaces();
    if (position_ < text_.size() && text_[position_] == c) {
      ++position_;
      return true;
    }
    return false;
  }

  void expect(char c) {
    if (!take(c)) {
      fail(std::string("'") + c + "' expected");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    TORCH_CHECK_VALUE(
        false,
        where_,
        ": ",
        what,
        " before '",
        text_.substr(position_),
        "'. See Note [Sample language].");
  }

  void skip_spaces() {
    while (position_ < text_.size() && text_[position_] == ' ') {
      ++position_;
    }
  }

  std::string_view word() {
    skip_spaces();
    const size_t start = position_;
    while (position_ < text_.size() && is_word(text_[position_])) {
      ++position_;
    }
    return text_.substr(start, position_ - start);
  }

  Expression value() {
    skip_spaces();
    if (position_ == text_.size()) {
      fail("a value expected");
    }
    const char c = text_[position_];
    if (c == '[') {
      return list();
    }
    if (c == '"') {
      return string();
    }
    if (std::isdigit(static_cast<unsigned char>(c)) || c == '-' || c == '.') {
      return number();
    }
    return named();
  }

  Expression list() {
    Expression result{.kind = Expression::Kind::kList};
    expect('[');
    while (!take(']')) {
      result.items.push_back(value());
      if (!take(',')) {
        expect(']');
        break;
      }
    }
    return result;
  }

  Expression string() {
    const size_t end = text_.find('"', position_ + 1);
    if (end == std::string_view::npos) {
      fail("a closing quote expected");
    }
    Expression result{.kind = Expression::Kind::kString};
    result.text = text_.substr(position_ + 1, end - position_ - 1);
    position_ = end + 1;
    return result;
  }

  Expression number() {
    skip_spaces();
    if (text_.substr(position_).starts_with("-inf")) {
      position_ += 4;
      return real(-std::numeric_limits<double>::infinity());
    }
    const char* begin = text_.data() + position_;
    const char* end = text_.data() + text_.size();
    int64_t integer = 0;
    double value = 0;
    const auto whole = std::from_chars(begin, end, integer);
    const auto broken = std::from_chars(begin, end, value);
    if (broken.ec != std::errc()) {
      fail("a number expected");
    }
    position_ += broken.ptr - begin;
    if (whole.ptr == broken.ptr) {
      Expression result{.kind = Expression::Kind::kInt};
      result.integer = integer;
      return result;
    }
    return real(value);
  }

  static Expression real(double value) {
    Expression result{.kind = Expression::Kind::kFloat};
    result.real = value;
    return result;
  }

  Expression named() {
    const auto name = word();
    if (name.empty()) {
      fail("a value expected");
    }
    if (name == "inf" || name == "nan") {
      return real(
          name == "inf" ? std::numeric_limits<double>::infinity()
                        : std::numeric_limits<double>::quiet_NaN());
    }
    if (name == "true" || name == "false") {
      Expression result{.kind = Expression::Kind::kBool};
      result.integer = name == "true";
      return result;
    }
    if (name == "none") {
      return {};
    }
    if (take('(')) {
      return tensor(std::string(name));
    }
    return {.kind = Expression::Kind::kName, .text = std::string(name)};
  }

  // Behind "f(".
  Expression tensor(const std::string& maker) {
    Expression result{.kind = Expression::Kind::kTensor, .text = maker};
    while (!take(')')) {
      if (take('<')) {
        result.below = number().integer;
        continue;
      }
      skip_spaces();
      result.sizes.push_back(number().integer);
      take(',');
    }
    while (true) {
      if (take(':')) {
        result.dtype = word();
      } else if (take('.')) {
        if (word() != "t") {
          fail("suffix .t expected");
        }
        result.transposed = true;
      } else {
        return result;
      }
    }
  }

  std::string_view text_;
  const std::string& where_;
  size_t position_ = 0;
};

std::string strip(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) {
    return {};
  }
  const size_t end = text.find_last_not_of(" \t\r");
  return std::string(text.substr(begin, end - begin + 1));
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> list;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    list.push_back(word);
  }
  return list;
}

// ---- values -----------------------------------------------------------------

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> names{
      {"f64", at::kDouble},         {"float64", at::kDouble},
      {"f32", at::kFloat},          {"float32", at::kFloat},
      {"f16", at::kHalf},           {"float16", at::kHalf},
      {"f8", at::kFloat8_e4m3fn},   {"bf16", at::kBFloat16},
      {"bfloat16", at::kBFloat16},  {"i64", at::kLong},
      {"int64", at::kLong},         {"i32", at::kInt},
      {"int32", at::kInt},          {"i16", at::kShort},
      {"int16", at::kShort},        {"i8", at::kChar},
      {"int8", at::kChar},          {"u8", at::kByte},
      {"uint8", at::kByte},         {"bool", at::kBool},
      {"c64", at::kComplexFloat},   {"complex64", at::kComplexFloat},
      {"c128", at::kComplexDouble}, {"complex128", at::kComplexDouble}};
  const auto it = names.find(name);
  return it == names.end() ? std::nullopt : std::optional(it->second);
}

std::optional<int64_t> enumerator(const std::string& name) {
  static const std::map<std::string, int64_t> names{
      {"contiguous_format", static_cast<int64_t>(at::MemoryFormat::Contiguous)},
      {"preserve_format", static_cast<int64_t>(at::MemoryFormat::Preserve)},
      {"channels_last", static_cast<int64_t>(at::MemoryFormat::ChannelsLast)},
      {"channels_last_3d",
       static_cast<int64_t>(at::MemoryFormat::ChannelsLast3d)},
      {"strided", static_cast<int64_t>(at::kStrided)}};
  const auto it = names.find(name);
  if (it != names.end()) {
    return it->second;
  }
  const auto dtype = dtype_of(name);
  return dtype ? std::optional(static_cast<int64_t>(*dtype)) : std::nullopt;
}

at::Tensor permutation(c10::IntArrayRef sizes, uint64_t seed) {
  return test::random(sizes, seed).argsort(/*stable=*/true, -1);
}

// So that sums of a few are exact.
at::Tensor few_bits(const at::Tensor& values) {
  constexpr double kUnit = 1 << 20;
  return values.mul(kUnit).round().div(kUnit);
}

at::Tensor make_values(const Expression& e, uint64_t seed) {
  const auto floats = [&] { return few_bits(test::random(e.sizes, seed)); };
  if (e.text == "f") {
    return floats();
  }
  if (e.text == "p") {
    return floats().abs().add(0.25);
  }
  if (e.text == "u") {
    return few_bits(floats().sigmoid().mul(0.9).add(0.05));
  }
  if (e.text == "i") {
    return floats().mul(1000).abs().to(at::kLong).remainder(e.below);
  }
  if (e.text == "b") {
    return floats().gt(0);
  }
  if (e.text == "c") {
    return at::complex(floats(), test::random(e.sizes, seed + 500));
  }
  if (e.text == "one") {
    return at::ones(e.sizes, at::kDouble);
  }
  if (e.text == "zero") {
    return at::zeros(e.sizes, at::kDouble);
  }
  if (e.text == "seq") {
    return at::arange(c10::multiply_integers(e.sizes), at::kDouble)
        .view(e.sizes);
  }
  if (e.text == "perm") {
    return permutation(e.sizes, seed);
  }
  if (e.text == "spd") {
    const auto x = floats();
    return x.matmul(x.mT()) + at::eye(e.sizes.back(), at::kDouble);
  }
  if (e.text == "tri") {
    const auto x = floats().tril();
    return x + at::diag_embed(
                   x.diagonal(0, -2, -1).sign() + (x.diagonal(0, -2, -1) == 0));
  }
  TORCH_CHECK_VALUE(false, "'", e.text, "(' makes no tensor");
}

at::Tensor make_tensor(const Expression& e, uint64_t seed) {
  auto tensor = make_values(e, seed);
  if (!e.dtype.empty()) {
    const auto dtype = dtype_of(e.dtype);
    TORCH_CHECK_VALUE(dtype, "':", e.dtype, "' is no dtype");
    tensor =
        (c10::isIntegralType(*dtype, false) && e.text == "f" ? tensor.mul(3)
                                                             : tensor)
            .to(*dtype);
  }
  if (e.transposed && tensor.dim() >= 2) {
    tensor = tensor.transpose(-1, -2).contiguous().transpose(-1, -2);
  }
  return tensor;
}

// Makes IValues of one line's expressions; tensors differ by their position.
class Binder {
 public:
  explicit Binder(uint64_t seed) : next_seed_(seed) {}

  bool convert(
      const Expression& e,
      const c10::Type& type,
      const c10::Type& real_type,
      std::optional<int32_t> list_length,
      IValue& value) {
    using Kind = Expression::Kind;
    switch (type.kind()) {
      case c10::TypeKind::OptionalType: {
        if (e.kind == Kind::kNone) {
          value = IValue();
          return true;
        }
        const auto& real = real_type.kind() == c10::TypeKind::OptionalType
                               ? *real_type.containedType(0)
                               : real_type;
        return convert(e, *type.containedType(0), real, list_length, value);
      }
      case c10::TypeKind::TensorType:
        if (e.kind == Kind::kTensor) {
          value = make_tensor(e, next_seed_++);
        }
        return e.kind == Kind::kTensor;
      case c10::TypeKind::ListType:
        return list(e, *type.containedType(0), list_length, value);
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return integer(e, real_type, value);
      case c10::TypeKind::FloatType:
        value = e.kind == Kind::kInt ? static_cast<double>(e.integer) : e.real;
        return e.kind == Kind::kInt || e.kind == Kind::kFloat;
      case c10::TypeKind::BoolType:
        value = e.integer != 0;
        return e.kind == Kind::kBool;
      case c10::TypeKind::NumberType:
        return number(e, value);
      case c10::TypeKind::StringType:
        value = e.text;
        return e.kind == Kind::kString;
      case c10::TypeKind::DeviceObjType:
        value = c10::Device(at::kCPU);
        return e.kind == Kind::kName && e.text == "cpu";
      default:
        return false;
    }
  }

 private:
  static bool
  integer(const Expression& e, const c10::Type& real_type, IValue& value) {
    const bool is_enum = real_type.kind() != c10::TypeKind::IntType &&
                         real_type.kind() != c10::TypeKind::SymIntType;
    if (e.kind == Expression::Kind::kName) {
      const auto number = enumerator(e.text);
      value = number.value_or(0);
      return is_enum && number;
    }
    value = e.integer;
    return !is_enum && e.kind == Expression::Kind::kInt;
  }

  static bool number(const Expression& e, IValue& value) {
    switch (e.kind) {
      case Expression::Kind::kInt:
        value = e.integer;
        return true;
      case Expression::Kind::kFloat:
        value = e.real;
        return true;
      case Expression::Kind::kBool:
        value = e.integer != 0;
        return true;
      default:
        return false;
    }
  }

  bool list(
      const Expression& e,
      const c10::Type& element,
      std::optional<int32_t> length,
      IValue& value) {
    Expression repeated{.kind = Expression::Kind::kList};
    if (e.kind != Expression::Kind::kList) {
      if (!length || e.kind != Expression::Kind::kInt) {
        return false;
      }
      repeated.items.assign(static_cast<size_t>(*length), e);
    }
    const auto& items = repeated.items.empty() ? e.items : repeated.items;
    std::vector<IValue> values(items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      if (!convert(items[i], element, element, std::nullopt, values[i])) {
        return false;
      }
    }
    value = typed_list(element, values);
    return true;
  }

  template <class T, class Get>
  static IValue collect(const std::vector<IValue>& values, const Get& get) {
    c10::List<T> typed;
    for (const auto& value : values) {
      typed.push_back(get(value));
    }
    return typed;
  }

  static IValue typed_list(
      const c10::Type& element,
      const std::vector<IValue>& values) {
    switch (element.kind()) {
      case c10::TypeKind::TensorType:
        return collect<at::Tensor>(
            values, [](const IValue& v) { return v.toTensor(); });
      case c10::TypeKind::OptionalType:
        return collect<std::optional<at::Tensor>>(values, [](const IValue& v) {
          return v.isNone() ? std::nullopt : std::optional(v.toTensor());
        });
      case c10::TypeKind::FloatType:
        return collect<double>(
            values, [](const IValue& v) { return v.toDouble(); });
      case c10::TypeKind::BoolType:
        return collect<bool>(
            values, [](const IValue& v) { return v.toBool(); });
      case c10::TypeKind::NumberType:
        return collect<at::Scalar>(
            values, [](const IValue& v) { return v.toScalar(); });
      case c10::TypeKind::StringType:
        return collect<std::string>(
            values, [](const IValue& v) { return v.toStringRef(); });
      default:
        return collect<int64_t>(
            values, [](const IValue& v) { return v.toInt(); });
    }
  }

  uint64_t next_seed_;
};

const Expression* find_argument(
    const SampleLine& line,
    const c10::Argument& argument,
    size_t position,
    std::vector<bool>& used) {
  for (size_t i = 0; i < line.arguments.size(); ++i) {
    const auto& given = line.arguments[i];
    const bool here = given.name.empty()
                          ? i == position && !argument.kwarg_only()
                          : given.name == argument.name();
    if (here && !used[i]) {
      used[i] = true;
      return &given.value;
    }
  }
  return nullptr;
}

} // namespace

std::optional<SampleLine> parse_line(
    const std::string& line,
    const std::string& where) {
  const auto text = strip(std::string_view(line).substr(0, line.find('#')));
  if (text.empty()) {
    return std::nullopt;
  }
  const size_t colon = (text + " ").find(": ");
  TORCH_CHECK_VALUE(
      colon != std::string::npos, where, ": 'op : arguments' expected");
  SampleLine result{
      where, strip(text.substr(colon + 1)), words(text.substr(0, colon)), {}};
  Reader reader(result.text, where);
  while (!reader.at_end()) {
    result.arguments.push_back(reader.argument());
    if (!reader.at_end()) {
      reader.expect(',');
    }
  }
  return result;
}

std::optional<torch::jit::Stack> bind_arguments(
    const SampleLine& line,
    const c10::FunctionSchema& schema,
    std::string& why,
    uint64_t seed) {
  torch::jit::Stack stack;
  std::vector<bool> used(line.arguments.size());
  Binder binder(seed);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    IValue value;
    if (const auto* given = find_argument(line, argument, i, used)) {
      if (!binder.convert(
              *given,
              *argument.type(),
              *argument.real_type(),
              argument.N(),
              value)) {
        why = c10::str("'", argument.name(), "' is not a ", *argument.type());
        return std::nullopt;
      }
    } else if (argument.default_value()) {
      value = *argument.default_value();
    } else if (argument.type()->kind() != c10::TypeKind::OptionalType) {
      why = c10::str("'", argument.name(), "' is missing");
      return std::nullopt;
    }
    stack.push_back(std::move(value));
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) {
      why = c10::str("argument ", i + 1, " is one too many");
      return std::nullopt;
    }
  }
  return stack;
}

} // namespace weft::dtensor::check
