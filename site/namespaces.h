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

/// Fully sharded data parallelism.
namespace weft::fsdp {}

/// Replica groups that are lost and come back during a run.
namespace weft::elastic {}

/// Checkpoints of models and optimizers on any mesh.
namespace weft::checkpoint {}

/// The library that multiplies matrices on the CPU.
namespace weft::matmul {}

/// Models, and the command line for programs with models of their own.
namespace weft::recipes {}

/// Tests of parallel programs, with ranks as threads.
namespace weft::testkit {}
