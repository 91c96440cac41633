#include <malloc.h>

#include <CLI/CLI.hpp>

#include "mesh/error.h"
#include "recipes/cli/commands.h"
#include "recipes/cli/failure.h"
#include "recipes/cli/usage.h"

namespace cli = weft::recipes::cli;

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

} // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  CLI::App app(
      "Trains transformers in two dimensions: data x tensor parallel.");
  app.name("weft");
  app.set_version_flag("--version", "weft 0.1.0");
  app.require_subcommand(1);
  cli::add_train(app);
  cli::add_explain(app);
  cli::add_bench(app);
  cli::add_checkpoint(app);
  cli::add_report(app);
  try {
    app.parse(cli::words_to_parse(app, argc, argv), argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error); // --help, --version
    }
    return cli::report_failure(
        "usage", weft::mesh::ExitCode::kUsage, cli::explain_usage(app, error));
  } catch (...) {
    const auto& used = app.get_subcommands();
    return cli::report_exception(used.empty() ? "weft" : used[0]->get_name());
  }
  return 0;
}
