#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace weft::dtensor {

// Note [Experts]
// ~~~~~~~~~~~~~~
// Pairs of a token and one of its experts are sorted by expert, so that each
// expert multiplies its rows in one piece: none is padded, none dropped. The
// experts of DTensors are where their weights do, Shard(0) over one mesh dim;
// tokens come to them in one of two ways:
//   tokens cut over that dim   Each rank tells the others how many rows their
//                              experts get (all_to_all of E numbers), sends
//                              the rows and gets the results back (two
//                              all_to_alls of k rows a token); backward sends
//                              gradients the same two ways.
//   tokens whole on it         Each rank has its experts' rows already; the
//                              results are Partial sums, and so is the
//                              gradient of the tokens: no row is sent, one
//                              reduction of the result in whatever form the
//                              next op wants it. Taking a part of the tokens
//                              instead moves 2 k / n + 1 of the rows that an
//                              all_reduce moves 2 of: not less unless there
//                              are more than 2 k ranks.
// Over the other mesh dims weights are whole and tokens may be cut, which
// leaves the weights' gradients as Partial sums. All ranks take part whatever
// the router says, with no rows if need be.
// How rows are divided is not known on the meta device: there each expert gets
// its even share.

/// Computes a dropless mixture of SwiGLU experts: the sum over a token's
/// experts of weight * down(silu(gate(x)) * up(x)). Takes plain tensors or
/// DTensors as described above. Differentiable to any order except in
/// `expert_index`.
/// Shapes: x [N, D] or [.., N, D]; expert_index (int64) and expert_weight [..,
/// N, k]; gate_up_proj [E, 2 F, D] with the gate's rows first; down_proj [E, D,
/// F]; the result has the shape of x. A token may use an expert at most once.
/// Collective: all ranks of the mesh; blocks. The flight recorder shows the
/// name of gate_up_proj.
/// Throws: c10::ValueError if shapes do not match, an index is out of range, or
/// the experts' weights are not Shard(0) over one mesh dim.
/// Source: Lepikhin et al., GShard (2020); Gale et al., MegaBlocks (2022);
/// transformers' MixtralExperts.
at::Tensor experts(
    const at::Tensor& x,
    const at::Tensor& expert_index,
    const at::Tensor& expert_weight,
    const at::Tensor& gate_up_proj,
    const at::Tensor& down_proj);

/// Counts the assignments of each expert per sequence.
/// Shapes: expert_index [.., T, k] (int64) to [.., num_experts] (int64). If a
/// DTensor is sharded along T, the counts are summed over the ranks.
/// Collective: all ranks of the mesh if it is sharded along T; blocks.
at::Tensor expert_counts(const at::Tensor& expert_index, int64_t num_experts);

} // namespace weft::dtensor
