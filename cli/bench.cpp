#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/bench/benches.h"
#include "cli/program.h"
#include "mesh/error/error.h"

namespace weft::cli {
namespace {

void add_json_flag(CLI::App& command) {
  command.add_flag_function(
      "--json",
      [](int64_t) {},
      "Has no effect: results are always one line of JSON");
}

void add_model_flags(
    CLI::App& command,
    const std::shared_ptr<cli::bench::StepOptions>& options) {
  command.add_option("--dp", options->dp, "Data-parallel ranks");
  command.add_option("--tp", options->tp, "Tensor-parallel ranks");
  command.add_option("--dim", options->dim, "The width of the model");
  command.add_option("--layers", options->layers, "The number of blocks");
  command.add_option("--heads", options->heads, "The number of query heads");
  command.add_option(
      "--kv_heads",
      options->kv_heads,
      "The number of key and value heads. 0 means the value of --heads");
  command.add_option(
      "--ffn_dim",
      options->ffn_dim,
      "The width of the feed-forward layers. 0 means 4 * dim");
  command.add_option("--seq", options->seq, "Tokens per sample");
  command.add_option("--batch", options->batch, "Samples per replica");
  command.add_option("--vocab", options->vocab, "The size of the vocabulary");
  command.add_option(
      "--sp", options->sequence_parallel, "Sequence parallelism: 0 or 1");
  command.add_option("--threads", options->threads, "Threads per rank");
  command.add_option(
      "--bucket_mb", options->bucket_mb, "MiB of gradients per bucket");
  command
      .add_option(
          "--engine",
          options->engine,
          "ddp; fsdp: parameters are sharded over the dp ranks")
      ->check(CLI::IsMember({"ddp", "fsdp"}));
  command
      .add_option(
          "--comm",
          options->comm,
          "auto; gloo: sockets on one host too; none: skips every collective, "
          "to show the limit")
      ->check(CLI::IsMember({"auto", "gloo", "none"}));
  command.add_option("--device", options->device, "cpu, or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command.add_option("--dtype", options->dtype, "float32, or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  command
      .add_option(
          "--products",
          options->products,
          "The library that multiplies on the CPU: auto, libtorch or onednn")
      ->check(CLI::IsMember({"auto", "libtorch", "onednn"}));
  add_json_flag(command);
}

void print_result(const std::optional<std::string>& result) {
  if (result) {
    std::printf("%s\n", result->c_str());
  }
}

void add_step(CLI::App& bench) {
  auto options = std::make_shared<cli::bench::StepOptions>();
  auto* command = bench.add_subcommand(
      "step",
      "Times training steps of a Llama on random tokens, like "
      "bench/peer/train_step.py");
  add_model_flags(*command, options);
  command->add_option("--steps", options->steps, "Number of timed steps");
  command->add_option(
      "--warmup", options->warmup, "Number of steps before the timed ones");
  command
      ->add_option(
          "--join",
          options->join,
          "Compares groups of N steps inside and outside a Join; steps must be "
          "a multiple of 2 N")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option(
          "--async_tp",
          options->async_tp,
          "Compares tp.async off, on and auto in groups of N steps; steps must "
          "be a multiple of 3 N")
      ->check(CLI::NonNegativeNumber);
  command->add_option(
      "--profile",
      options->profile,
      "After the timed steps, records three more on rank 0 with libtorch's "
      "profiler and writes a trace that chrome://tracing and Perfetto read");
  command->callback([options] {
    if (options->async_tp > 0 &&
        (options->join > 0 || options->steps % (3 * options->async_tp) != 0)) {
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "[bench] --steps {} must be a multiple of three times --async_tp {}, "
          "and --async_tp cannot be combined with --join.",
          options->steps,
          options->async_tp));
    }
    if (options->join > 0 && options->engine == "fsdp") {
      mesh::throw_error<mesh::UsageError>(
          "[bench] --join cannot be combined with --engine fsdp: the benchmark "
          "measures only DDP's Join. Leave one of them out.");
    }
    if (options->join > 0 && options->steps % (2 * options->join) != 0) {
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "[bench] --steps {} must be a multiple of twice --join {}.",
          options->steps,
          options->join));
    }
    print_result(cli::bench::run_step(*options));
  });
}

void add_startup(CLI::App& bench) {
  auto options = std::make_shared<cli::bench::StepOptions>();
  auto* command = bench.add_subcommand(
      "startup",
      "Times each phase from the launch to the end of the first training "
      "step");
  add_model_flags(*command, options);
  command->callback(
      [options] { print_result(cli::bench::run_startup(*options)); });
}

void add_collective(CLI::App& bench) {
  auto options = std::make_shared<cli::bench::CollectiveOptions>();
  auto* command = bench.add_subcommand(
      "collective",
      "Times every collective over sockets and over shared memory; run it with "
      "weftrun");
  command->add_option("--ops", options->ops, "Some of them: a,b; default: all")
      ->delimiter(',')
      ->check(CLI::IsMember(cli::bench::collective_names()));
  command
      ->add_option(
          "--sizes",
          options->sizes,
          "Of a rank's largest tensor: 1KB,64MB; default: 1KB to 64MB")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false));
  command->add_option("--backend", options->backend, "auto: both in turn")
      ->check(CLI::IsMember({"auto", "gloo", "shm"}));
  command->add_option("--dtype", options->dtype, "float32, bfloat16, ...")
      ->check(CLI::IsMember(
          {"float32", "float64", "bfloat16", "float16", "int32", "int64"}));
  command->add_option("--rounds", options->rounds)
      ->check(CLI::Range(1, 1 << 20));
  add_json_flag(*command);
  command->callback(
      [options] { print_result(cli::bench::run_collective(*options)); });
}

void add_checkpoint_bench(CLI::App& bench) {
  auto options = std::make_shared<cli::bench::CheckpointOptions>();
  auto* command = bench.add_subcommand(
      "checkpoint",
      "Times saving and loading, like bench/peer/checkpoint.py; run it with "
      "weftrun");
  command
      ->add_option(
          "folder",
          options->folder,
          "Scratch folder; must not exist and is deleted afterwards")
      ->required();
  command->add_option("mb", options->mb, "Size of the state, MiB")
      ->check(CLI::Range(12, 1 << 20));
  command->add_option("--threads", options->threads, "Threads per rank");
  add_json_flag(*command);
  command->callback(
      [options] { print_result(cli::bench::run_checkpoint(*options)); });
}

void add_save_plan(CLI::App& bench) {
  auto options = std::make_shared<cli::bench::SavePlanOptions>();
  auto* command = bench.add_subcommand(
      "save_plan",
      "Times planning a save and merging all ranks' reports, with a fake "
      "process group");
  const auto add = [&](const char* flag, int64_t& value, const char* help) {
    command->add_option(flag, value, help)->check(CLI::Range(1, 1 << 24));
  };
  add("--ranks", options->ranks, "dp times tp");
  add("--dp", options->dp, "Data-parallel ranks");
  add("--tp", options->tp, "Tensor-parallel ranks");
  add("--zero",
      options->zero,
      "The data-parallel ranks over which the optimizer's moments are sharded");
  add("--layers", options->layers, "The number of blocks");
  add("--dim", options->dim, "The width of the model");
  add("--ffn_dim", options->ffn_dim, "The width of the feed-forward layers");
  add("--heads", options->heads, "The number of query heads");
  add("--kv_heads", options->kv_heads, "The number of key and value heads");
  add("--vocab", options->vocab, "The size of the vocabulary");
  command->add_option(
      "--folder",
      options->folder,
      "The folder in which the manifest is written and deleted");
  add_json_flag(*command);
  command->callback(
      [options] { print_result(cli::bench::run_save_plan(*options)); });
}

void add_dispatch(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "dispatch", "Times an op on DTensors against the same op on tensors");
  auto only = std::make_shared<std::string>();
  command->add_option("--only", *only, "One op, e.g. mm_grad; default: all");
  add_json_flag(*command);
  command->callback([only] { print_result(cli::bench::run_dispatch(*only)); });
}

void add_matmul(CLI::App& bench) {
  auto options = std::make_shared<cli::bench::StepOptions>();
  auto* command = bench.add_subcommand(
      "matmul",
      "Times the matmuls of a step on one rank with each available library");
  add_model_flags(*command, options);
  command->callback(
      [options] { print_result(cli::bench::run_matmul(*options)); });
}

void add_random(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "random", "Times random ops on DTensors against libtorch's generator");
  add_json_flag(*command);
  command->callback([] { print_result(cli::bench::run_random()); });
}

void add_reducer(CLI::App& bench) {
  auto options = std::make_shared<cli::bench::ReducerOptions>();
  auto* command = bench.add_subcommand(
      "reducer",
      "Times backward with DDP against plain backward, like "
      "bench/peer/reducer.py; runs alone or with weftrun");
  command
      ->add_option(
          "--widths", options->widths, "The widths of the layers: 64,256")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--layers", options->layers, "The number of layers")
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--batch", options->batch, "Samples per rank")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--rounds", options->rounds, "Number of timed rounds")
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option(
          "--warmup", options->warmup, "Number of rounds before the timed ones")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--threads", options->threads, "Threads per rank");
  command->add_option(
      "--bucket_mb", options->bucket_mb, "MiB of gradients per bucket");
  command->add_flag(
      "--keep_gradients",
      options->keep_gradients,
      "zero_grad() keeps the gradients' memory");
  add_json_flag(*command);
  command->callback(
      [options] { print_result(cli::bench::run_reducer(*options)); });
}

void add_redistribute(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "redistribute",
      "Times redistributions, like bench/peer/redistribute.py; run it with "
      "weftrun");
  add_json_flag(*command);
  command->callback([] { print_result(cli::bench::run_redistribute()); });
}

void add_deferred_memory(CLI::App& bench) {
  auto options = std::make_shared<cli::bench::DeferredMemoryOptions>();
  auto* command = bench.add_subcommand(
      "deferred-memory",
      "Measures the memory of a model built in DeferredInit on each rank; run "
      "it with weftrun");
  command->add_option("--layers", options->layers, "Square linear layers")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--dim", options->dim, "The width of the layers")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--threads", options->threads, "Threads per rank");
  add_json_flag(*command);
  command->callback(
      [options] { print_result(cli::bench::run_deferred_memory(*options)); });
}

} // namespace

void add_bench(CLI::App& app) {
  auto* command = app.add_subcommand("bench", "Run a benchmark");
  command->require_subcommand(1);
  add_step(*command);
  add_startup(*command);
  add_collective(*command);
  add_dispatch(*command);
  add_matmul(*command);
  add_random(*command);
  add_redistribute(*command);
  add_reducer(*command);
  add_checkpoint_bench(*command);
  add_save_plan(*command);
  add_deferred_memory(*command);
}

} // namespace weft::cli
