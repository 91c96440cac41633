#include "data/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "data/data_error.h"
#include "data/find_files.h"
#include "data/mapped_file.h"
#include "data/token_layout.h"
#include "data/token_writer.h"

namespace weft::data {
namespace {

[[noreturn]] void refuse_option(const std::string& message) {
  mesh::throw_error<mesh::UsageError>(message);
}

TokenType chosen_type(
    const tokenizers::Tokenizer& tokenizer,
    const TokenizeOptions& options) {
  const int64_t vocab_size = tokenizer.vocab_size();
  if (!options.type) {
    if (const auto type = type_for(options.format, vocab_size)) {
      return *type;
    }
    refuse_option(fmt::format(
        "--format raw stores uint16, which is too small for {}; use --dtype "
        "uint32",
        tokenizer.describe()));
  }
  if (most(*options.type) < vocab_size - 1) {
    refuse_option(fmt::format(
        "--dtype {}: too small for {}",
        to_string(*options.type),
        tokenizer.describe()));
  }
  if (options.format == TokenFormat::kMegatron &&
      *options.type == TokenType::kUint32) {
    return TokenType::kInt32;
  }
  return *options.type;
}

std::optional<int64_t> wanted(
    bool is_wanted,
    const char* option,
    std::optional<int64_t> token,
    const tokenizers::Tokenizer& tokenizer) {
  if (is_wanted && !token) {
    refuse_option(
        fmt::format("{}: {} has no such token", option, tokenizer.describe()));
  }
  return is_wanted ? token : std::nullopt;
}

class Job {
 public:
  Job(const tokenizers::Tokenizer& tokenizer,
      const TokenizeOptions& options,
      const std::function<void(const TokenizeProgress&)>& show)
      : tokenizer_(tokenizer),
        separator_(options.document_separator),
        show_(show),
        bos_(wanted(options.bos, "--bos", tokenizer.bos(), tokenizer)),
        eos_(wanted(options.eos, "--eos", tokenizer.eos(), tokenizer)),
        writer_(
            options.output,
            options.format,
            chosen_type(tokenizer, options),
            options.force) {}

  TokenizeProgress run(const std::vector<DataFile>& files) {
    for (const DataFile& file : files) {
      progress_.bytes_total += file.size_bytes;
    }
    for (const DataFile& file : files) {
      read(file);
    }
    if (writer_.num_tokens() == 0) {
      refuse_option("all documents are empty");
    }
    writer_.finish(
        {.tokenizer = tokenizer_.describe(),
         .fingerprint = tokenizer_.fingerprint_text(),
         .vocab_size = tokenizer_.vocab_size()});
    report();
    return progress_;
  }

 private:
  void read(const DataFile& file) {
    const MappedFile map(file.path);
    const std::string_view text(
        reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size());
    file_begin_ = progress_.bytes_done;
    size_t begin = 0;
    while (begin < text.size()) {
      const size_t end = separator_.empty() ? std::string_view::npos
                                            : text.find(separator_, begin);
      map.check_unchanged(static_cast<int64_t>(begin));
      add_document(file, text, begin, std::min(end, text.size()));
      begin =
          end == std::string_view::npos ? text.size() : end + separator_.size();
      progress_.bytes_done = file_begin_ + static_cast<int64_t>(begin);
    }
    progress_.bytes_done = file_begin_ + file.size_bytes;
  }

  void add_document(
      const DataFile& file,
      std::string_view text,
      size_t begin,
      size_t end) {
    if (begin == end) {
      return;
    }
    add(bos_);
    try {
      tokenizer_.encode_to(
          text.substr(begin, end - begin),
          [&](std::span<const int64_t> tokens, size_t bytes) {
            writer_.add(tokens);
            progress_.bytes_done = std::max(
                progress_.bytes_done,
                std::min(
                    file_begin_ + static_cast<int64_t>(begin + bytes),
                    file_begin_ + static_cast<int64_t>(end)));
            report();
          });
    } catch (const tokenizers::InvalidText& error) {
      refuse_data(
          file.path,
          static_cast<int64_t>(begin + error.offset()),
          fmt::format(
              "byte 0x{:02x} is not valid UTF-8. Convert the file (iconv), or "
              "use the tokenizer \"byte\"",
              static_cast<unsigned char>(text[begin + error.offset()])));
    }
    add(eos_);
    writer_.end_document();
  }

  void add(std::optional<int64_t> token) {
    if (token) {
      writer_.add({&*token, 1});
    }
  }

  void report() {
    progress_.tokens = writer_.num_tokens();
    progress_.documents = writer_.num_documents();
    if (show_) {
      show_(progress_);
    }
  }

  const tokenizers::Tokenizer& tokenizer_;
  std::string separator_;
  const std::function<void(const TokenizeProgress&)>& show_;
  std::optional<int64_t> bos_;
  std::optional<int64_t> eos_;
  TokenWriter writer_;
  TokenizeProgress progress_;
  /// The bytes of the previous files.
  int64_t file_begin_ = 0;
};

} // namespace

TokenizeProgress tokenize(
    const tokenizers::Tokenizer& tokenizer,
    const TokenizeOptions& options,
    const std::function<void(const TokenizeProgress&)>& show) {
  const std::vector<DataFile> files = find_files(options.inputs, "INPUT");
  if (files.empty()) {
    refuse_option("INPUT: all files are empty");
  }
  for (const DataFile& file : files) {
    std::error_code ignored;
    for (const std::string& output :
         {options.output,
          index_path(options.output),
          origin_path(options.output)}) {
      if (std::filesystem::equivalent(file.path, output, ignored)) {
        refuse_option(fmt::format(
            "\"{}\" is an input and would be overwritten. Choose another "
            "output",
            file.path));
      }
    }
  }
  return Job(tokenizer, options, show).run(files);
}

} // namespace weft::data
