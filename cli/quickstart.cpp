#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/program.h"
#include "mesh/error/error.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;

struct QuickstartArguments {
  int64_t ranks = 4;
  std::vector<std::string> overrides;
};

fs::path folder_of_programs() {
  return fs::read_symlink("/proc/self/exe").parent_path();
}

/// Returns the recipe of an installed package, or of the source tree of a
/// build.
fs::path find_recipe(const fs::path& programs) {
  for (const auto* folder : {"../share/weft/recipes", "../../recipes"}) {
    auto path = programs / folder / "quickstart.yaml";
    if (fs::exists(path)) {
      return fs::canonical(path);
    }
  }
  mesh::throw_error<mesh::UsageError>(fmt::format(
      "recipes/quickstart.yaml is neither in ../share/weft nor in ../.. of {}",
      programs.string()));
}

fs::path find_headers() {
  Dl_info library{};
  // NOLINTNEXTLINE(*-reinterpret-cast): dladdr() takes any address.
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &library) == 0) {
    mesh::throw_error<mesh::UsageError>("libtorch_cpu.so was not found");
  }
  return fs::canonical(library.dli_fname).parent_path().parent_path() /
         "include";
}

std::vector<std::string> command_of(const QuickstartArguments& arguments) {
  const auto programs = folder_of_programs();
  std::vector<std::string> command = {
      (programs / "weftrun").string(),
      "--nproc-per-node",
      std::to_string(arguments.ranks),
      "--",
      (programs / "weft").string(),
      "train",
      find_recipe(programs).string(),
      fmt::format("data.paths=[\"{}\"]", find_headers().string())};
  if (arguments.ranks != 4) { // The recipe's mesh is 2 x 2.
    command.emplace_back("mesh.dp=-1");
    if (arguments.ranks % 2 != 0) {
      command.emplace_back("mesh.tp=1");
    }
  }
  command.insert(
      command.end(), arguments.overrides.begin(), arguments.overrides.end());
  return command;
}

/// Returns the command with the quotes that a shell needs.
std::string text_of(const std::vector<std::string>& command) {
  std::string text;
  for (const auto& word : command) {
    const bool is_plain =
        word.find_first_of(" \t\n'\"[]{}*?$&|;<>()`\\") == std::string::npos;
    text += is_plain ? word + ' ' : fmt::format("'{}' ", word);
  }
  text.pop_back();
  return text;
}

[[noreturn]] void quickstart(const QuickstartArguments& arguments) {
  const auto command = command_of(arguments);
  std::printf("%s\n", text_of(command).c_str());
  std::fflush(stdout);
  std::vector<char*> words;
  for (const auto& word : command) {
    words.push_back(const_cast<char*>(word.c_str())); // as execv() wants it
  }
  words.push_back(nullptr);
  ::execv(command.front().c_str(), words.data());
  mesh::throw_error<mesh::UsageError>(fmt::format(
      "cannot start {}: {}", command.front(), std::strerror(errno)));
}

} // namespace

void add_quickstart(CLI::App& app) {
  auto arguments = std::make_shared<QuickstartArguments>();
  auto* command = app.add_subcommand(
      "quickstart",
      "Train a small Llama on the headers of libtorch, as a first try");
  command
      ->add_option(
          "--nproc-per-node",
          arguments->ranks,
          "Ranks on this host. Default: 4")
      ->check(CLI::Range(1, 1024));
  command->add_option(
      "overrides",
      arguments->overrides,
      "Overrides of recipe keys, key.path=value, e.g. train.steps=20");
  command->callback([arguments] { quickstart(*arguments); });
}

} // namespace weft::cli
