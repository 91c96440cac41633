#pragma once

namespace CLI {
class App;
} // namespace CLI

namespace weft::recipes::cli {

/// Each adds a subcommand to `app`; its callback runs the command and throws
/// on failure (main.cpp turns what is thrown into an exit code).
void add_train(CLI::App& app);
void add_bench(CLI::App& app);
void add_checkpoint(CLI::App& app);
void add_report(CLI::App& app);
void add_explain(CLI::App& app);

} // namespace weft::recipes::cli
