#include "config/yaml_tree.h"

#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

namespace weft::config {
namespace {

Position to_position(const YAML::Mark& mark) {
  return mark.is_null() ? Position{} : Position{mark.line + 1, mark.column + 1};
}

// A handler that builds the tree from yaml-cpp's events. It stops the parser by
// an exception at the first construct that recipes do not use.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string_view text) : text_(text) {}

  YamlNode take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      throw YamlError(
          to_position(mark),
          "a second YAML document begins here, but a recipe must be a single "
          "document");
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    add(make(YamlNode::Kind::kNull, mark));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    throw YamlError(to_position(mark), "aliases (*) are not supported");
  }

  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    throw YamlError(
        to_position(mark), fmt::format("anchors are not supported: &{}", name));
  }

  void OnScalar(
      const YAML::Mark& mark,
      const std::string& tag,
      YAML::anchor_t /*anchor*/,
      const std::string& value) override {
    refuse_tag(mark, tag);
    YamlNode node = make(YamlNode::Kind::kScalar, mark);
    node.quoted = tag == "!";
    node.text = value;
    add(std::move(node));
  }

  void OnSequenceStart(
      const YAML::Mark& mark,
      const std::string& tag,
      YAML::anchor_t /*anchor*/,
      YAML::EmitterStyle::value /*style*/) override {
    refuse_tag(mark, tag);
    open(make(YamlNode::Kind::kList, mark));
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(
      const YAML::Mark& mark,
      const std::string& tag,
      YAML::anchor_t /*anchor*/,
      YAML::EmitterStyle::value /*style*/) override {
    refuse_tag(mark, tag);
    open(make(YamlNode::Kind::kMap, mark));
  }
  void OnMapEnd() override { close(); }

 private:
  // yaml-cpp passes the tag "?" for a scalar without a tag and "!" for a quoted
  // one. But it also passes "!" for a value that is written with the tag "!".
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    const auto offset = static_cast<size_t>(mark.pos);
    const bool written =
        mark.pos >= 0 && offset < text_.size() && text_[offset] == '!';
    if (written || (tag != "?" && tag != "!" && !tag.empty())) {
      throw YamlError(to_position(mark), "tags (!) are not supported");
    }
  }

  YamlNode make(YamlNode::Kind kind, const YAML::Mark& mark) {
    if (++nodes_ > kMaxYamlNodes) {
      throw YamlError(
          to_position(mark), fmt::format("more than {} values", kMaxYamlNodes));
    }
    YamlNode node;
    node.kind = kind;
    node.where = to_position(mark);
    return node;
  }

  void open(YamlNode node) {
    if (static_cast<int64_t>(open_.size()) >= kMaxYamlDepth) {
      throw YamlError(
          node.where, fmt::format("nested more than {} deep", kMaxYamlDepth));
    }
    open_.push_back(std::move(node));
  }

  void close() {
    YamlNode node = std::move(open_.back());
    open_.pop_back();
    add(std::move(node));
  }

  void add(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    YamlNode& parent = open_.back();
    const bool is_key = parent.kind == YamlNode::Kind::kMap &&
                        parent.keys.size() == parent.items.size();
    (is_key ? parent.keys : parent.items).push_back(std::move(node));
  }

  std::string_view text_;
  YamlNode root_;
  std::vector<YamlNode> open_;
  int64_t documents_ = 0;
  int64_t nodes_ = 0;
};

} // namespace

YamlNode parse_yaml(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  scan_yaml(text);
  TreeBuilder builder(text);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    const bool at_end = error.mark.pos + 1 >= static_cast<int>(text.size());
    throw YamlError(
        to_position(error.mark),
        fmt::format(
            "not YAML: {}{}",
            error.msg,
            at_end
                ? ". The text ends here. Check for an unclosed bracket or quote"
                : ""));
  }
  return builder.take_root();
}

} // namespace weft::config
