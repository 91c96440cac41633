#include "recipes/cli/main.h"

#include <malloc.h>

#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>

#include "mesh/crash_handler.h"
#include "mesh/error.h"
#include "mesh/standard_streams.h"
#include "mesh/watch/stacks.h"
#include "recipes/cli/commands.h"
#include "recipes/cli/failure.h"
#include "recipes/cli/program.h"
#include "recipes/cli/usage.h"

namespace weft::recipes::cli {
namespace {

// A training step frees its activations and asks for as much again. By default
// glibc gives large blocks back to the kernel each time, which then zeroes new
// pages for every step (5 to 8 % of the step of a small model). Keep them.
void keep_freed_memory() {
  constexpr int kMebibyte = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, 32 * kMebibyte); // the largest that glibc takes
  mallopt(M_TRIM_THRESHOLD, 1024 * kMebibyte);
  mallopt(M_TOP_PAD, 64 * kMebibyte);
}

void add_commands(Program& program) {
  add_train(program);
  add_eval(program);
  add_generate(program);
  add_explain(program);
  add_bench(program);
  add_checkpoint(program);
  add_report(program);
  add_tokenize(program);
  add_doctor(program);
}

// The program's own name, for the words on how to call it.
std::string name_of(const char* path) {
  return std::filesystem::path(path).filename().string();
}

} // namespace

int main(int argc, char** argv, ModelTypes models) {
  mesh::open_standard_streams();
  mesh::install_crash_handler();
  mesh::install_stack_signal();
  keep_freed_memory();
  Program program(
      "Trains transformers in two dimensions: data x tensor parallel.",
      std::make_shared<const ModelTypes>(std::move(models)));
  program.name(argc > 0 ? name_of(argv[0]) : "weft");
  program.set_version_flag("--version", "weft 0.1.0");
  program.require_subcommand(1);
  add_commands(program);
  try {
    check_model_types(*program.models());
    program.parse(words_to_parse(program, argc, argv), argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return program.exit(error); // --help, --version
    }
    return report_failure(
        "usage", mesh::ExitCode::kUsage, explain_usage(program, error));
  } catch (...) {
    const auto& used = program.get_subcommands();
    return report_exception(used.empty() ? "weft" : used[0]->get_name());
  }
  return 0;
}

} // namespace weft::recipes::cli
