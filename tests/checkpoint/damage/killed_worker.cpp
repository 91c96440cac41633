#include "tests/checkpoint/damage/killed_worker.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "checkpoint/files/error.h"
#include "checkpoint/load/load.h"
#include "checkpoint/store/store.h"
#include "checkpoint/verify.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

checkpoint::File open_to_damage(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_GE(fd, 0) << path;
  return {fd, path};
}

} // namespace

Victim::Victim(fs::path step_folder, const Tensors& tensors)
    : folder_(std::move(step_folder)),
      manifest_(checkpoint::read_manifest(folder_)) {
  for (const auto& [name, record] : manifest_.files) {
    names_.push_back(name);
  }
  names_.emplace_back(checkpoint::kManifestName);
  for (const auto& name : names_) {
    contents_[name] = read_file(folder_ / name);
    open_.emplace(name, open_to_damage(folder_ / name));
  }
  for (const auto& [key, tensor] : tensors) {
    const auto dot = key.find('.');
    targets_[key.substr(0, dot)][key.substr(dot + 1)] = at::zeros_like(tensor);
  }
}

std::string Victim::tensor_at(const std::string& file, int64_t at) const {
  for (const auto& [key, tensor] : manifest_.tensors) {
    for (const auto& chunk : tensor.chunks) {
      if (chunk.file == file && chunk.begin <= at && at < chunk.end) {
        return key;
      }
    }
  }
  return "";
}

std::string Victim::first_tensor_in(const std::string& file) const {
  for (const auto& [key, tensor] : manifest_.tensors) {
    for (const auto& chunk : tensor.chunks) {
      if (chunk.file == file) {
        return key;
      }
    }
  }
  return "";
}

void Victim::put(const std::string& file, int64_t at, std::string_view bytes) {
  const std::array parts = {std::as_bytes(std::span(bytes))};
  open_.at(file).write_at(at, parts);
}

void Victim::resize(const std::string& file, int64_t bytes) {
  ASSERT_EQ(::ftruncate(open_.at(file).fd(), bytes), 0);
}

void Victim::replace(const std::string& file, const std::string& content) {
  resize(file, static_cast<int64_t>(content.size()));
  put(file, 0, content);
}

void Victim::restore(const std::string& file) {
  replace(file, contents_.at(file));
}

void Victim::restore_entry(const std::string& file) {
  fs::remove_all(folder_ / file);
  write_file(folder_ / file, contents_.at(file));
  open_.at(file) = open_to_damage(folder_ / file);
}

bool Victim::verify_names(
    const std::string& file,
    const std::string& tensor,
    const std::string& hmac_key) const {
  const auto damages = checkpoint::verify(folder_, hmac_key);
  return std::ranges::any_of(
      damages, [&](const checkpoint::Corruption& damage) {
        const bool is_named =
            damage.tensor == tensor ||
            damage.what.find('"' + tensor + '"') != std::string::npos;
        return damage.file == file && (tensor.empty() || is_named);
      });
}

bool Victim::load_names(
    const std::string& file,
    const std::string& tensor,
    const std::string& hmac_key) {
  checkpoint::LoadOptions options;
  options.hmac_key = hmac_key;
  try {
    checkpoint::load(folder_, targets_, options);
  } catch (const checkpoint::CheckpointError& error) {
    const std::string text = error.what_without_backtrace();
    return text.find(file) != std::string::npos &&
           (tensor.empty() ||
            text.find('"' + tensor + '"') != std::string::npos);
  } catch (const c10::ValueError& error) { // it does not fit what is asked for
    const std::string text = error.what_without_backtrace();
    return !tensor.empty() && text.find(tensor) != std::string::npos;
  }
  return false;
}

bool Victim::targets_are_zero() const {
  for (const auto& [part, dict] : targets_) {
    for (const auto& [name, tensor] : dict) {
      const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
      if (std::any_of(
              bytes, bytes + tensor.nbytes(), [](char c) { return c != 0; })) {
        return false;
      }
    }
  }
  return true;
}

void Victim::expect_found(
    const std::string& file,
    const std::string& tensor,
    DamageCount& count,
    const std::string& hmac_key) {
  ++count.done;
  const bool by_verify = verify_names(file, tensor, hmac_key);
  const bool by_load = load_names(file, tensor, hmac_key);
  EXPECT_TRUE(by_verify) << file << " " << tensor;
  EXPECT_TRUE(by_load) << file << " " << tensor;
  EXPECT_TRUE(targets_are_zero());
  count.by_verify += by_verify ? 1 : 0;
  count.by_load += by_load ? 1 : 0;
}

void Victim::expect_sound(const std::string& hmac_key) {
  EXPECT_TRUE(checkpoint::verify(folder_, hmac_key).empty());
  checkpoint::LoadOptions options;
  options.hmac_key = hmac_key;
  checkpoint::load(folder_, targets_, options);
  EXPECT_FALSE(targets_are_zero());
  for (const auto& [part, dict] : targets_) {
    for (const auto& [name, tensor] : dict) {
      tensor.zero_();
    }
  }
}

} // namespace weft::test
