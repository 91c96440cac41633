#include "data/token_source.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "data/find_files.h"

namespace weft::data {

ByteTokens::ByteTokens(TextCorpus corpus) : corpus_(std::move(corpus)) {}

int64_t ByteTokens::size() const {
  return corpus_.size();
}

void ByteTokens::read(int64_t index, std::span<int64_t> out) {
  bytes_.resize(out.size());
  corpus_.read(index, bytes_);
  std::copy(bytes_.begin(), bytes_.end(), out.begin());
}

std::string ByteTokens::fingerprint_text() const {
  return corpus_.fingerprint_text();
}

std::string ByteTokens::describe() const {
  return fmt::format(
      "{:.1f} MB of text", static_cast<double>(corpus_.size()) * 1e-6);
}

FileTokens::FileTokens(
    const std::vector<std::string>& paths,
    const Options& options,
    const std::string& where)
    : vocab_size_(options.vocab_size) {
  int64_t end = 0;
  for (const DataFile& found : find_files(paths, where)) {
    if (found.path.ends_with(".idx") || found.path.ends_with(".json")) {
      continue;
    }
    files_.push_back(TokenFile::open(found.path, options.format, options.type));
    const TokenFile& file = files_.back();
    if (file.origin() && file.origin()->vocab_size > vocab_size_) {
      refuse_data(
          found.path,
          0,
          fmt::format(
              "the tokens were written with {}, whose vocabulary has {} "
              "tokens, but model.vocab_size is {}. Raise model.vocab_size",
              file.origin()->tokenizer,
              file.origin()->vocab_size,
              vocab_size_));
    }
    file.check_below(vocab_size_);
    end += file.size();
    ends_.push_back(end);
  }
  if (end == 0) {
    mesh::throw_error<mesh::UsageError>(
        fmt::format("{}: no tokens in any file", where));
  }
}

int64_t FileTokens::size() const {
  return ends_.back();
}

void FileTokens::read(int64_t index, std::span<int64_t> out) {
  const auto length = static_cast<int64_t>(out.size());
  if (index < 0 || index > size() - length) {
    mesh::throw_error<c10::ValueError>(fmt::format(
        "[read] got index {} and length {}, expected a range within the {} "
        "tokens of the data.",
        index,
        length,
        size()));
  }
  auto place = static_cast<size_t>(
      std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  while (!out.empty()) {
    const TokenFile& file = files_[place];
    const int64_t in_file = index - (ends_[place] - file.size());
    const auto part = out.first(static_cast<size_t>(
        std::min(static_cast<int64_t>(out.size()), file.size() - in_file)));
    file.read(in_file, part);
    file.check_tokens_below(part, in_file, vocab_size_);
    out = out.subspan(part.size());
    index += static_cast<int64_t>(part.size());
    ++place;
  }
}

std::string FileTokens::fingerprint_text() const {
  std::vector<DataFile> names;
  for (const TokenFile& file : files_) {
    names.push_back(file.file());
  }
  return fmt::format("{:016x}", fingerprint(names));
}

std::string FileTokens::describe() const {
  return fmt::format(
      "{:.1f} M tokens in {} file{}",
      static_cast<double>(size()) * 1e-6,
      files_.size(),
      files_.size() == 1 ? "" : "s");
}

} // namespace weft::data
