#include "data/digit_images.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "data/sample_order.h"
#include "data/text_corpus.h"
#include "mesh/error/error.h"

namespace weft::data {
namespace {

constexpr int64_t kPixels = DigitImages::kSize * DigitImages::kSize;
constexpr int kMaxInk = 16;

struct Rows {
  std::vector<float> pixels;
  std::vector<int64_t> digits;
};

[[noreturn]] void refuse_file(
    const std::string& path,
    const std::string& reason) {
  mesh::throw_error<DataError>(fmt::format("data file \"{}\"{}", path, reason));
}

std::string read_unzipped(const std::string& path) {
  constexpr size_t kMax = 1 << 26; // The size of 400,000 images.
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(
      gzopen(path.c_str(), "rb"), gzclose);
  if (!file) {
    refuse_file(path, fmt::format(": {}", std::strerror(errno)));
  }
  std::string text;
  std::vector<char> part(1 << 16);
  int count = 0;
  while ((count = gzread(
              file.get(), part.data(), static_cast<unsigned>(part.size()))) >
             0 &&
         text.size() < kMax) {
    text.append(part.data(), static_cast<size_t>(count));
  }
  int status = Z_OK;
  const char* reason = gzerror(file.get(), &status);
  if (status != Z_OK && status != Z_STREAM_END) {
    refuse_file(path, fmt::format(": {}", reason));
  }
  if (text.size() >= kMax) {
    refuse_file(path, fmt::format(": more than {} bytes of text", kMax));
  }
  return text;
}

// Takes the next integer of a row. Returns -1 if there is none, or if it is
// above `most`.
int take_number(std::string_view& row, int most) {
  int value = -1;
  const char* end = row.data() + row.size();
  const auto result = std::from_chars(row.data(), end, value);
  const bool whole =
      result.ec == std::errc() && (result.ptr == end || *result.ptr == ',');
  if (!whole || value < 0 || value > most) {
    return -1;
  }
  row.remove_prefix(static_cast<size_t>(result.ptr - row.data()));
  if (row.size() > 1) {
    row.remove_prefix(1);
  }
  return value;
}

bool add_row(std::string_view row, Rows& rows) {
  for (int64_t i = 0; i < kPixels; ++i) {
    const int ink = take_number(row, kMaxInk);
    if (ink < 0) {
      return false;
    }
    rows.pixels.push_back(static_cast<float>(ink) / kMaxInk);
  }
  rows.digits.push_back(take_number(row, DigitImages::kClasses - 1));
  return rows.digits.back() >= 0 && row.empty();
}

void add_file(const std::string& path, Rows& rows) {
  const std::string text = read_unzipped(path);
  std::string_view rest = text;
  for (int64_t line = 1; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view row = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (row.ends_with('\r')) {
      row.remove_suffix(1);
    }
    if (!row.empty() && !add_row(row, rows)) {
      refuse_file(
          path,
          fmt::format(
              ", line {}: expected {} pixels from 0 to {} and a digit, "
              "separated by commas",
              line,
              kPixels,
              kMaxInk));
    }
  }
}

std::vector<DataFile> find_digit_files(
    const std::vector<std::string>& paths,
    const std::string& where) {
  try {
    return find_files(paths, where);
  } catch (const mesh::UsageError& error) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}. Run `make digits` to write the images of scikit-learn to "
        ".cache/digits.csv.gz",
        error.what_without_backtrace()));
  }
}

} // namespace

DigitImages::DigitImages(
    const std::vector<std::string>& paths,
    uint64_t seed,
    const std::string& where)
    : files_(find_digit_files(paths, where)), seed_(seed) {
  Rows rows;
  for (const DataFile& file : files_) {
    add_file(file.path, rows);
  }
  const auto count = static_cast<int64_t>(rows.digits.size());
  if (count < 2) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{}: got {} images, expected at least one for training and one for "
        "validation",
        where,
        count));
  }
  input_NCHW_ = at::tensor(rows.pixels).view({count, kChannels, kSize, kSize});
  target_N_ = at::tensor(rows.digits, at::kLong);
  heldout_ = std::max<int64_t>(count / 10, 1);
}

int64_t DigitImages::num_train_samples() const {
  return size() - heldout_;
}

int64_t DigitImages::num_heldout_samples() const {
  return heldout_;
}

Batch DigitImages::train(std::span<const int64_t> samples) {
  std::vector<int64_t> rows;
  for (const int64_t sample : samples) {
    rows.push_back(shuffled(sample, num_train_samples(), seed_));
  }
  return take(rows);
}

Batch DigitImages::heldout(std::span<const int64_t> samples) {
  std::vector<int64_t> rows;
  for (const int64_t sample : samples) {
    rows.push_back(num_train_samples() + sample % heldout_);
  }
  return take(rows);
}

Batch DigitImages::take(const std::vector<int64_t>& rows) const {
  const auto index = at::tensor(rows, at::kLong);
  return {
      .input = input_NCHW_.index_select(0, index),
      .target = target_N_.index_select(0, index)};
}

std::string DigitImages::fingerprint_text() const {
  return fmt::format("{:016x}", fingerprint(files_));
}

std::string DigitImages::describe() const {
  return fmt::format("{} images of digits", size());
}

} // namespace weft::data
