// The namespaces of the API reference. Only Doxygen reads this file.

/// All of Weft, and RankContext, the argument of testkit::run_ranks().
namespace weft {}

/// Ranks: worlds, device meshes, groups and their collectives, errors.
namespace weft::mesh {}

/// DTensors: placements, redistribution, modules, and scopes that change what
/// ops do.
namespace weft::dtensor {}

/// Tensor parallelism: styles of modules, plans, low-rank adapters.
namespace weft::tp {}

/// Replicated data parallelism: the wrapper, hooks, sharded optimizer state,
/// averaging of models, Join.
namespace weft::ddp {}

/// What DDP and FSDP share: communication hooks, uneven inputs, hooks of
/// gradients.
namespace weft::data_parallel {}

/// Fully sharded data parallelism.
namespace weft::fsdp {}

/// Replica groups that are lost and come back during a run.
namespace weft::elastic {}

/// Which replica groups train together after a loss: state machines.
namespace weft::lighthouse {}

/// Checkpoints of models and optimizers on any mesh.
namespace weft::checkpoint {}

/// The library that multiplies matrices on the CPU.
namespace weft::matmul {}

/// Recipes: their keys, YAML and checks of values.
namespace weft::config {}

/// Tokenizers of Hugging Face and SentencePiece files.
namespace weft::tokenizers {}

/// Models, and the registration of models of your own.
namespace weft::models {}

/// Text, token files and images as batches.
namespace weft::data {}

/// Import and export of Hugging Face folders.
namespace weft::hf {}

/// The training loop of recipes.
namespace weft::train {}

/// Evaluation and generation.
namespace weft::inference {}

/// The commands of weft, for programs with models of their own.
namespace weft::cli {}

/// Tests of parallel programs, with ranks as threads.
namespace weft::testkit {}
