#pragma once

namespace CLI {
class App;
} // namespace CLI

namespace weft::recipes::cli {

class Program;

/// Each adds a subcommand to the program; its callback runs the command and
/// throws on failure (main.cpp turns what is thrown into an exit code). Those
/// that read recipes need to know the program's models (program.h).
void add_train(Program& program);
void add_eval(Program& program);
void add_generate(Program& program);
void add_explain(Program& program);
void add_bench(CLI::App& app);
void add_checkpoint(CLI::App& app);
void add_report(CLI::App& app);
void add_doctor(CLI::App& app);
void add_tokenize(CLI::App& app);

} // namespace weft::recipes::cli
