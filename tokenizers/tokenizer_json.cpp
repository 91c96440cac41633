#include "tokenizers/tokenizer_json.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/json_text.h"
#include "tokenizers/added_tokens.h"
#include "tokenizers/bpe_model.h"
#include "tokenizers/json_node.h"
#include "tokenizers/normalizer.h"
#include "tokenizers/pre_tokenizer.h"
#include "tokenizers/token_decoder.h"
#include "tokenizers/tokenizer_file.h"
#include "tokenizers/utf8.h"

namespace weft::tokenizers {
namespace {

namespace fs = std::filesystem;

nlohmann::json parse_json(std::string_view text, const std::string& path) {
  try {
    return base::parse_json(text);
  } catch (const nlohmann::json::exception& error) {
    mesh::throw_error<TokenizerError>(
        fmt::format("{}: not JSON: {}", path, error.what()));
  }
}

struct Ends {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
};

// Returns the name of a token, which is written as "<s>" or {"content": "<s>",
// ...}.
std::optional<std::string> token_name(const JsonNode& node, const char* key) {
  const auto found = node.find(key);
  if (!found) {
    return std::nullopt;
  }
  return found->value().is_object() ? found->at("content").string()
                                    : found->string();
}

std::optional<Ends> ends_in_file(const fs::path& path) {
  if (!fs::is_regular_file(path)) {
    return std::nullopt;
  }
  const nlohmann::json json =
      parse_json(read_tokenizer_file(path.native()), path.native());
  const JsonNode node(json, path.native());
  const Ends ends{
      .bos = token_name(node, "bos_token"),
      .eos = token_name(node, "eos_token")};
  return ends.bos || ends.eos ? std::optional(ends) : std::nullopt;
}

// Reads only the begin and end tokens, because encode() does not add any.
void read_post_processor(const JsonNode& node, Ends& ends) {
  const std::string type = node.type();
  if (type == "Sequence") {
    for (const JsonNode& step : node.at("processors").elements()) {
      read_post_processor(step, ends);
    }
  } else if (type == "TemplateProcessing") {
    const auto parts = node.at("single").elements();
    bool is_after_text = false;
    for (const JsonNode& part : parts) {
      if (const auto token = part.find("SpecialToken")) {
        auto& end = is_after_text ? ends.eos : ends.bos;
        end = end ? end : token->at("id").string();
      }
      is_after_text = is_after_text || part.find("Sequence");
    }
  } else if (type != "ByteLevel") {
    node.refuse_type();
  }
}

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(const JsonNode& node, std::string path, std::string fingerprint)
      : path_(std::move(path)),
        fingerprint_(std::move(fingerprint)),
        normalizers_(node.find("normalizer")),
        words_(node.find("pre_tokenizer")),
        model_(node.at("model"), words_.is_byte_level()),
        added_(node.find("added_tokens"), model_.vocabulary(), normalizers_),
        decoder_(node.find("decoder")) {
    for (const auto& [token, id] : model_.vocabulary()) {
      set_name(id, token);
    }
    for (const auto& [id, text] : added_.texts()) {
      set_name(id, text);
    }
    find_ends(node);
  }

  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> tokens;
    encode_to(text, [&](std::span<const int64_t> part, size_t /*bytes*/) {
      tokens.insert(tokens.end(), part.begin(), part.end());
    });
    return tokens;
  }

  void encode_to(std::string_view text, const TokenSink& sink) const override {
    check_text(text);
    std::vector<int64_t> tokens;
    added_.split(
        text,
        /*is_normalized=*/false,
        [&](std::string_view part, const AddedToken* token) {
          if (token != nullptr) {
            tokens.push_back(token->id);
          } else {
            const auto begin = static_cast<size_t>(part.data() - text.data());
            encode_part(part, begin, tokens, sink);
          }
        });
    sink(tokens, text.size());
  }

  std::string decode(std::span<const int64_t> tokens) const override {
    std::vector<std::string> names;
    for (const int64_t token : tokens) {
      check_token(token, vocab_size());
      const std::string& name = names_[static_cast<size_t>(token)];
      const bool is_there = is_there_[static_cast<size_t>(token)];
      if (is_there && !added_.is_special(name)) {
        names.push_back(name);
      }
    }
    return decoder_.decode(std::move(names));
  }

  int64_t vocab_size() const override {
    return static_cast<int64_t>(names_.size());
  }
  std::optional<int64_t> bos() const override { return bos_; }
  std::optional<int64_t> eos() const override { return eos_; }

  std::string describe() const override {
    return fmt::format(
        "{}BPE of {} tokens ({})",
        words_.is_byte_level() ? "byte-level " : "",
        vocab_size(),
        path_);
  }
  std::string fingerprint_text() const override { return fingerprint_; }

 private:
  void set_name(int32_t id, const std::string& name) {
    const auto place = static_cast<size_t>(id);
    if (place >= names_.size()) {
      names_.resize(place + 1);
      is_there_.resize(place + 1);
    }
    names_[place] = name;
    is_there_[place] = true;
  }

  void find_ends(const JsonNode& node) {
    Ends ends;
    if (const auto processor = node.find("post_processor")) {
      read_post_processor(*processor, ends);
    }
    const fs::path folder = fs::path(path_).parent_path();
    for (const char* name :
         {"tokenizer_config.json", "special_tokens_map.json"}) {
      if (const auto found = ends_in_file(folder / name)) {
        ends = *found;
        break;
      }
    }
    bos_ = id_of(node, ends.bos);
    eos_ = id_of(node, ends.eos);
  }

  std::optional<int64_t> id_of(
      const JsonNode& node,
      const std::optional<std::string>& name) const {
    if (!name) {
      return std::nullopt;
    }
    if (const AddedToken* token = added_.find(*name)) {
      return token->id;
    }
    const auto found = model_.vocabulary().find(*name);
    if (found == model_.vocabulary().end()) {
      node.refuse(fmt::format(
          "the other files in its folder set \"{}\" as the BOS or EOS token, "
          "but it is not in the vocabulary",
          *name));
    }
    return found->second;
  }

  // Encodes a part of the text, starting at `begin`, that contains no added
  // tokens.
  void encode_part(
      std::string_view part,
      size_t begin,
      std::vector<int64_t>& tokens,
      const TokenSink& sink) const {
    const HeadedText changed =
        normalizers_.empty() ? HeadedText() : normalizers_.apply(part);
    const std::string_view text = normalizers_.empty() ? part : changed.text;
    const size_t head = begin > 0              ? 0
                        : normalizers_.empty() ? utf8_length(part[0])
                                               : changed.head;
    size_t done = begin;
    const auto encode_piece = [&](std::string_view piece) {
      constexpr size_t kMaxWaiting = 1 << 14;
      model_.encode(piece, tokens);
      done = std::min(done + piece.size(), begin + part.size());
      if (tokens.size() >= kMaxWaiting) {
        sink(tokens, done);
        tokens.clear();
      }
    };
    const auto encode_word = [&](std::string_view word, size_t /*head*/) {
      model_.for_each_piece(word, encode_piece);
    };
    added_.split(
        text,
        /*is_normalized=*/true,
        [&](std::string_view piece, const AddedToken* token) {
          if (token != nullptr) {
            tokens.push_back(token->id);
          } else {
            const auto at = static_cast<size_t>(piece.data() - text.data());
            words_.split(
                piece, head_of_part(head, at, at + piece.size()), encode_word);
          }
        });
  }

  std::string path_;
  std::string fingerprint_;
  Normalizers normalizers_;
  PreTokenizers words_;
  BpeModel model_;
  AddedTokens added_;
  TokenDecoder decoder_;
  std::vector<std::string> names_;
  std::vector<bool> is_there_;
  std::optional<int64_t> bos_;
  std::optional<int64_t> eos_;
};

} // namespace

std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& path) {
  return parse_tokenizer_json(read_tokenizer_file(path), path);
}

std::unique_ptr<Tokenizer> parse_tokenizer_json(
    std::string_view text,
    const std::string& path) {
  const nlohmann::json json = parse_json(text, path);
  return std::make_unique<BpeTokenizer>(
      JsonNode(json, path), path, content_fingerprint(text));
}

} // namespace weft::tokenizers
