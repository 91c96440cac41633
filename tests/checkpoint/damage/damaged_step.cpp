#include "tests/checkpoint/damage/damaged_step.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/format/hash.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/manifest_rules.h"
#include "tests/checkpoint/sample.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class Damager {
 public:
  Damager(const fs::path& folder, const fs::path& other, std::mt19937_64& rng)
      : folder_(folder), other_(other), rng_(rng) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      files_.push_back(entry.path().filename());
    }
    std::ranges::sort(files_); // the same damage for the same seed
  }

  // Nothing where the choice does not fit this folder.
  std::string apply(size_t kind, bool& is_read) {
    is_read = true;
    switch (kind) {
      case 0:
      case 1:
      case 2:
        return flip_bit();
      case 3:
        return cut();
      case 4:
        return zero_page();
      case 5:
        return extend();
      case 6:
        return delete_file();
      case 7:
        return swap_files();
      case 8:
        return take_from_other_step();
      case 9:
        is_read = false;
        return add_entry();
      case 10:
        return replace_by_other_kind();
      default:
        return edit_manifest();
    }
  }
  static constexpr size_t kKinds = 14;

 private:
  size_t below(size_t end) {
    return std::uniform_int_distribution<size_t>(0, end - 1)(rng_);
  }

  const fs::path& any_file() { return files_[below(files_.size())]; }

  // `change` returns what it did, or nothing if the bytes stayed the same.
  std::string rewrite(
      const std::function<std::string(std::string&)>& change,
      const fs::path& name) {
    auto bytes = read_file(folder_ / name);
    const auto before = bytes;
    const auto what = change(bytes);
    if (bytes == before) {
      return {};
    }
    write_file(folder_ / name, bytes);
    return what + " of " + name.string();
  }

  std::string flip_bit() {
    return rewrite(
        [&](std::string& bytes) {
          // As many in headers, which are small, as in data.
          const auto range = below(2) == 0
                                 ? bytes.size()
                                 : std::min<size_t>(bytes.size(), 1024);
          const auto at = below(range);
          const auto bit = below(8);
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
          return "flip bit " + std::to_string(bit) + " of byte " +
                 std::to_string(at);
        },
        any_file());
  }

  std::string cut() {
    return rewrite(
        [&](std::string& bytes) {
          const auto pages = bytes.size() / 4096;
          const auto size =
              below(2) == 0 ? below(bytes.size()) : below(pages + 1) * 4096;
          bytes.resize(std::min(bytes.size(), size));
          return "cut to " + std::to_string(size) + " bytes";
        },
        any_file());
  }

  std::string zero_page() {
    return rewrite(
        [&](std::string& bytes) {
          const auto begin = below(bytes.size()) / 512 * 512;
          const auto size = std::min<size_t>(
              below(2) == 0 ? 512 : 4096, bytes.size() - begin);
          std::fill_n(bytes.begin() + static_cast<int64_t>(begin), size, '\0');
          return "zero " + std::to_string(size) + " bytes from " +
                 std::to_string(begin);
        },
        any_file());
  }

  std::string extend() {
    return rewrite(
        [&](std::string& bytes) {
          const auto size = 1 + below(below(2) == 0 ? 8 : 8192);
          bytes.append(size, below(2) == 0 ? '\0' : '\n');
          return "append " + std::to_string(size) + " bytes";
        },
        any_file());
  }

  std::string delete_file() {
    const auto& name = any_file();
    fs::remove(folder_ / name);
    return "delete " + name.string();
  }

  std::string swap_files() {
    const auto& a = any_file();
    const auto& b = any_file();
    if (a == b) {
      return {};
    }
    fs::rename(folder_ / a, folder_ / "swap");
    fs::rename(folder_ / b, folder_ / a);
    fs::rename(folder_ / "swap", folder_ / b);
    return "swap " + a.string() + " and " + b.string();
  }

  std::string take_from_other_step() {
    const auto& name = any_file();
    // A whole manifest of another mesh's files may be sound for their size.
    if (name == checkpoint::kManifestName || !fs::exists(other_ / name) ||
        read_file(other_ / name) == read_file(folder_ / name)) {
      return {};
    }
    fs::remove(folder_ / name);
    fs::copy_file(other_ / name, folder_ / name);
    return "take from another step " + name.string();
  }

  std::string add_entry() {
    const std::vector<std::string> names = {
        "shard-00077-00000.safetensors", "model.bin", ".hidden", "sub"};
    const auto& name = names[below(names.size())];
    if (name == "sub") {
      fs::create_directory(folder_ / name);
    } else {
      write_file(folder_ / name, "more");
    }
    return "add " + name;
  }

  std::string replace_by_other_kind() {
    const auto& name = any_file();
    fs::rename(folder_ / name, folder_.parent_path() / "moved-away");
    if (below(2) == 0) {
      fs::create_directory(folder_ / name);
      fs::remove(folder_.parent_path() / "moved-away");
      return "make a folder of " + name.string();
    }
    // With the right content, but not in the folder.
    fs::remove_all(folder_.parent_path() / "elsewhere");
    fs::rename(
        folder_.parent_path() / "moved-away",
        folder_.parent_path() / "elsewhere");
    fs::create_symlink("../elsewhere", folder_ / name);
    return "make a symbolic link of " + name.string();
  }

  std::string edit_manifest() {
    const auto path = folder_ / checkpoint::kManifestName;
    auto json = Json::parse(read_file(path));
    const auto before = json;
    const auto what = edit(json);
    if (json == before) {
      return {};
    }
    const auto old_hash = json["xxh3"].get<std::string>();
    json.erase("xxh3");
    auto text = json.dump(1);
    text.resize(text.rfind('}'));
    text += ",\n\"xxh3\": \"" + old_hash + "\"\n}\n";
    const bool make_right = below(2) == 0;
    write_file(path, make_right ? with_right_hash(text) : text);
    return what + (make_right ? ", hash made right" : ", hash as it was");
  }

  std::string edit(Json& json) {
    auto& tensors = json["tensors"];
    auto tensor = tensors.begin();
    std::advance(tensor, below(tensors.size()));
    const auto name = tensor.key();
    auto& chunks = tensor.value()["chunks"];
    switch (below(9)) {
      case 0:
        tensors.erase(name);
        return "drop tensor " + name;
      case 1: {
        const Json copy = tensor.value();
        tensors[name + ".copy"] = copy;
        return "double tensor " + name;
      }
      case 2:
        if (!chunks.empty()) {
          chunks.erase(below(chunks.size()));
        }
        return "drop a chunk of " + name;
      case 3:
        if (!chunks.empty()) {
          const Json copy = chunks[0];
          chunks.push_back(copy);
        }
        return "double a chunk of " + name;
      case 4: {
        const Json value = tensor.value();
        tensors.erase(name);
        tensors[name + ".renamed"] = value;
        return "rename tensor " + name;
      }
      case 5:
        if (tensor.value()["dtype"] == "F32") {
          tensor.value()["dtype"] = "I32";
        }
        return "another dtype of the same size for " + name;
      case 6:
        if (chunks.size() > 1) {
          std::swap(chunks[0]["offset"], chunks[1]["offset"]);
        }
        return "swap offsets of " + name;
      case 7:
        json["step"] = json["step"].get<int64_t>() + 1;
        return "another step";
      default: {
        auto file = json["files"].begin();
        std::advance(file, below(json["files"].size()));
        auto& record = file.value();
        const char* member = below(2) == 0 ? "bytes" : "header_bytes";
        record[member] = record[member].get<int64_t>() + 8;
        return std::string("more ") + member + " of " + file.key();
      }
    }
  }

  fs::path folder_;
  fs::path other_;
  std::mt19937_64& rng_;
  std::vector<fs::path> files_;
};

} // namespace

std::string with_right_hash(std::string manifest) {
  const auto at = checkpoint::hash_position(manifest);
  manifest.replace(
      at, checkpoint::kHexDigits, std::string(checkpoint::kHashDigits));
  const auto digits = checkpoint::to_hex(checkpoint::hash(manifest));
  return manifest.replace(at, checkpoint::kHexDigits, digits);
}

InjectedDamage apply_random_damage(
    const fs::path& step_folder,
    const fs::path& other_step,
    std::mt19937_64& rng) {
  Damager damager(step_folder, other_step, rng);
  InjectedDamage damage;
  while (damage.what.empty()) {
    const auto kind =
        std::uniform_int_distribution<size_t>(0, Damager::kKinds - 1)(rng);
    damage.what = damager.apply(kind, damage.is_read);
  }
  return damage;
}

void restore_step(const fs::path& from, const fs::path& to) {
  fs::remove_all(to);
  fs::copy(from, to, fs::copy_options::recursive);
}

} // namespace weft::test
