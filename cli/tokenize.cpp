#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/program.h"
#include "data/tokenize.h"
#include "data/tokenize_bar.h"

namespace weft::cli {
namespace {

struct TokenizeArguments {
  std::string tokenizer;
  std::string format = "raw";
  std::string dtype;
  data::TokenizeOptions options;
};

data::TokenizeOptions options_of(const TokenizeArguments& arguments) {
  data::TokenizeOptions options = arguments.options;
  options.format =
      config::choice_of<config::TokenFormat>(arguments.format).value();
  if (!arguments.dtype.empty()) {
    options.type = arguments.dtype == "uint32" ? data::TokenType::kUint32
                                               : data::TokenType::kUint16;
  }
  return options;
}

void run_tokenize(const TokenizeArguments& arguments) {
  const auto tokenizer = tokenizers::open_tokenizer(arguments.tokenizer);
  data::TokenizeProgress done;
  {
    data::TokenizeBar bar(stderr, ::isatty(::fileno(stderr)) == 1);
    done = data::tokenize(
        *tokenizer,
        options_of(arguments),
        [&](const data::TokenizeProgress& progress) { bar.show(progress); });
  }
  fmt::print(
      "{}: {} tokens of {} document{} by {}\n",
      arguments.options.output,
      done.tokens,
      done.documents,
      done.documents == 1 ? "" : "s",
      tokenizer->describe());
}

} // namespace

void add_tokenize(CLI::App& app) {
  auto arguments = std::make_shared<TokenizeArguments>();
  data::TokenizeOptions& options = arguments->options;
  auto* command = app.add_subcommand(
      "tokenize", "Tokenize text into a token file, for data.type: tokens");
  command
      ->add_option(
          "tokenizer",
          arguments->tokenizer,
          "byte, a SentencePiece *.model, a tokenizer.json, or a folder with "
          "one of them")
      ->required();
  command
      ->add_option(
          "inputs", options.inputs, "Files, folders and globs of text in UTF-8")
      ->required();
  command
      ->add_option(
          "-o,--output",
          options.output,
          "Output file. An earlier output of this command is replaced; another "
          "existing file is refused")
      ->required();
  command->add_flag(
      "--force",
      options.force,
      "Replaces existing files OUT, OUT.json and OUT.idx of any kind");
  command->add_flag(
      "--bos", options.bos, "Adds the begin token to every document");
  command->add_flag(
      "--eos", options.eos, "Adds the end token to every document");
  command->add_option(
      "--document-separator",
      options.document_separator,
      "Separator of documents in a file. Without it every file is one "
      "document");
  command->add_option("--format", arguments->format, "raw, llm.c or megatron")
      ->check(CLI::IsMember({"raw", "llm.c", "megatron"}));
  command
      ->add_option(
          "--dtype",
          arguments->dtype,
          "uint16 or uint32; default: uint16 if the vocabulary fits")
      ->check(CLI::IsMember({"uint16", "uint32"}));
  command->callback([arguments] { run_tokenize(*arguments); });
}

} // namespace weft::cli
