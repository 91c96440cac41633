#include "cli/main.h"

#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <locale>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/failure_line.h"
#include "base/log.h"
#include "base/memory_allocator.h"
#include "base/process.h"
#include "base/safe_writer.h"
#include "cli/failure.h"
#include "cli/program.h"
#include "cli/usage.h"
#include "mesh/bootstrap/env.h"
#include "mesh/crash/crash_handler.h"
#include "mesh/crash/stacks.h"
#include "mesh/error/error.h"

namespace weft::cli {
namespace {

// Shrinks the caches of oneDNN and of libtorch in front of it. Each keeps
// compiled code for 1,024 matmul shapes, up to 0.6 MB per shape. A model has a
// few dozen shapes. Only batches of many sizes fill the caches.
void keep_fewer_products() {
  mesh::env::set_default("LRU_CACHE_CAPACITY", "256");
  mesh::env::set_default("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256");
}

void add_commands(Program& program) {
  add_quickstart(program);
  add_train(program);
  add_eval(program);
  add_generate(program);
  add_explain(program);
  add_bench(program);
  add_checkpoint(program);
  add_report(program);
  add_quorum(program);
  add_tokenize(program);
  add_doctor(program);
}

// Numbers in recipes, command lines and output are those of the C locale,
// whatever a host program has set: 0.7 and 4000, not 0,7 and 4.000.
void use_numbers_of_c_locale() {
  std::setlocale(LC_NUMERIC, "C");
  std::locale::global(
      std::locale(std::locale(), std::locale::classic(), std::locale::numeric));
}

std::string name_of(const char* path) {
  return std::filesystem::path(path).filename().string();
}

// Reports a failure if stdout cannot be written, because stdout is the result
// of a command. This excludes train, which also writes its results to files.
int report_unwritten_output(const std::string& command) {
  errno = 0;
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written || command == "train") {
    return 0;
  }
  return report_failure(
      command,
      mesh::ExitCode::kUsage,
      fmt::format(
          "cannot write to stdout{}{}",
          errno == 0 ? "" : ": ",
          errno == 0 ? "" : std::strerror(errno)));
}

// Adds --log-level to every command without subcommands. It sets the variable
// that all loggers of the process read.
void add_log_level(CLI::App& command) {
  const auto subcommands = command.get_subcommands({});
  for (auto* subcommand : subcommands) {
    add_log_level(*subcommand);
  }
  if (subcommands.empty()) {
    command
        .add_option_function<std::string>(
            "--log-level",
            [](const std::string& level) {
              mesh::env::set(base::kLogLevelVariable, level.c_str());
            },
            "Least level of log lines: debug, info (default), warning or error")
        ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  }
}

void prepare_for_libtorch(
    int /*argc*/,
    char** /*argv*/,
    char** /*environment*/) {
  // Without a working directory, libtorch's libraries end the process with a
  // message about themselves.
  if (base::is_working_directory_removed()) {
    base::SafeWriter out(STDERR_FILENO);
    base::write_failure_start(out, 2, 0, "weft");
    out << base::kWorkingDirectoryRemoved << "\n";
    out.flush();
    ::_exit(static_cast<int>(mesh::ExitCode::kUsage));
  }
  base::take_memory_for_libtorch();
}

// The loader runs this section before the initializers of shared libraries.
// Only programs may have it.
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kBeforeLibtorch)(int, char**, char**) =
    &prepare_for_libtorch;

} // namespace

int main(int argc, char** argv, config::ModelTypes models) {
  base::prepare_process();
  use_numbers_of_c_locale();
  mesh::install_crash_handler();
  mesh::install_stack_signal();
  base::keep_freed_memory();
  keep_fewer_products();
  Program program(
      "Trains transformers with data parallelism and tensor parallelism.",
      models::known_models(std::move(models)));
  program.name(argc > 0 ? name_of(argv[0]) : "weft");
  program.set_version_flag("--version", "weft 0.1.0");
  program.require_subcommand(1);
  add_commands(program);
  add_log_level(program);
  try {
    if (const auto error =
            base::log_level_error(mesh::env::get(base::kLogLevelVariable));
        !error.empty()) {
      mesh::throw_error<mesh::UsageError>(error);
    }
    models::check_model_types(*program.models().types);
    program.parse(words_to_parse(program, argc, argv), argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      program.exit(error); // --help, --version
      return report_unwritten_output("weft");
    }
    return report_failure(
        "usage", mesh::ExitCode::kUsage, explain_usage(program, error));
  } catch (...) {
    const auto& used = program.get_subcommands();
    const int code =
        report_exception(used.empty() ? "weft" : used[0]->get_name());
    if (code == static_cast<int>(mesh::ExitCode::kOutOfMemory)) {
      // If memory ran out while an op was registered, libtorch's static
      // destructors abort.
      base::end_process(code);
    }
    return code;
  }
  return report_unwritten_output(program.get_subcommands().at(0)->get_name());
}

} // namespace weft::cli
