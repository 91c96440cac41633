#include "checkpoint/load/load_selection.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "base/dotted_pattern.h"
#include "checkpoint/files/text.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/load/convert.h"
#include "checkpoint/load/key_pattern.h"

namespace weft::checkpoint {
namespace {

constexpr const char* kSelectOp = "checkpoint.load";

class KeyFilter {
 public:
  explicit KeyFilter(const LoadOptions& options)
      : include_(options.include), exclude_(options.exclude) {}

  bool selects(const std::string& key) {
    // Evaluates both, so that the matches of both are recorded.
    const bool in = any_matches(include_, key) || include_.empty();
    return !any_matches(exclude_, key) && in;
  }

  void check_all_matched(const std::filesystem::path& folder) const {
    for (const auto* patterns : {&include_, &exclude_}) {
      for (const auto& pattern : *patterns) {
        TORCH_CHECK_VALUE(
            matched_.contains(pattern),
            "[",
            kSelectOp,
            "] ",
            in_quotes(pattern),
            patterns == &include_ ? " of include" : " of exclude",
            " matches no tensor of the state or of ",
            folder.string(),
            ". `*` does not match a dot, `**` does; keys begin with their "
            "part, as \"model.\".");
      }
    }
  }

 private:
  bool any_matches(
      const std::vector<std::string>& patterns,
      const std::string& key) {
    bool any = false;
    for (const auto& pattern : patterns) {
      if (base::matches_dotted(pattern, key)) {
        matched_.insert(pattern);
        any = true;
      }
    }
    return any;
  }

  const std::vector<std::string>& include_;
  const std::vector<std::string>& exclude_;
  std::set<std::string> matched_;
};

std::map<std::string, std::string> sources_by_key(
    const Manifest& manifest,
    const LoadOptions& options) {
  const Renaming rename(options.rename);
  std::map<std::string, std::string> sources;
  for (const auto& [name, record] : manifest.tensors) {
    const auto key = rename(name);
    const auto [found, is_new] = sources.emplace(key, name);
    TORCH_CHECK_VALUE(
        is_new,
        "[",
        kSelectOp,
        "] ",
        in_quotes(found->second),
        " and ",
        in_quotes(name),
        " are both renamed to ",
        in_quotes(key),
        ". Make the pattern narrower.");
  }
  return sources;
}

std::string misfit(const StateItem& item, const TensorRecord& record) {
  return fmt::format(
      "{} {} {} in the checkpoint vs {} {} to load into",
      in_quotes(item.item.key),
      to_text(record.shape),
      plain_name(record.dtype),
      to_text(item.item.sizes),
      plain_name(item.dtype));
}

bool fits(
    const StateItem& item,
    const TensorRecord& record,
    const LoadOptions& options) {
  return record.shape == item.item.sizes &&
         (record.dtype == item.dtype ||
          (options.convert_dtype && is_convertible(record.dtype, item.dtype)));
}

std::string hints(const KeyDifferences& differences, bool converts) {
  std::string text;
  if (!differences.missing.empty() || !differences.unexpected.empty()) {
    text +=
        " Build the model that was saved, give LoadOptions.rename rules, or "
        "leave tensors out with include, exclude or strictness.";
  }
  if (!differences.mismatched.empty()) {
    text += converts ? " Build the model that was saved."
                     : " Where only the dtype differs, "
                       "LoadOptions.convert_dtype loads it.";
  }
  return text;
}

} // namespace

LoadSelection select_tensors(
    const std::filesystem::path& folder,
    const Manifest& manifest,
    const std::vector<StateItem>& items,
    const std::vector<std::string>& parts,
    const LoadOptions& options) {
  KeyFilter filter(options);
  auto sources = sources_by_key(manifest, options);
  LoadSelection selection;
  KeyDifferences differences;
  for (const auto& item : items) {
    const auto& key = item.item.key;
    if (!filter.selects(key)) {
      sources.erase(key);
      continue;
    }
    const auto found = sources.find(key);
    if (found == sources.end()) {
      selection.missing.push_back(key);
      continue;
    }
    const auto& record = manifest.tensors.at(found->second);
    if (!fits(item, record, options)) {
      differences.mismatched.push_back(misfit(item, record));
    }
    selection.targets.push_back({item, found->second, record.dtype});
    sources.erase(found);
  }
  for (const auto& [key, name] : sources) {
    const auto part = key.substr(0, key.find('.'));
    if (filter.selects(key) && std::ranges::count(parts, part) > 0) {
      selection.unexpected.push_back(name);
    }
  }
  filter.check_all_matched(folder);
  if (options.strictness == Strictness::kExact ||
      options.strictness == Strictness::kAllowUnexpected) {
    differences.missing = selection.missing;
  }
  if (options.strictness == Strictness::kExact ||
      options.strictness == Strictness::kAllowMissing) {
    differences.unexpected = selection.unexpected;
  }
  TORCH_CHECK_VALUE(
      differences.empty(),
      "[",
      kSelectOp,
      "] ",
      folder.string(),
      " does not match the state: ",
      to_string(differences),
      ".",
      hints(differences, options.convert_dtype));
  return selection;
}

} // namespace weft::checkpoint
