#include "mesh/backends/shm/shm_call.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "mesh/communicator/row_reduction.h"

namespace weft::mesh {
namespace {

using Counts = Backend::Counts;

std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

struct Span {
  size_t begin = 0;
  size_t size = 0;
};

// Returns piece number `round` of `span` in pieces of `step` bytes. The piece
// is empty if the span has fewer.
Span piece_of(const Span& span, size_t step, uint64_t round) {
  const size_t begin = std::min<size_t>(round * step, span.size);
  return {span.begin + begin, std::min(step, span.size - begin)};
}

uint64_t pieces_in(size_t bytes, size_t step) {
  return (bytes + step - 1) / step;
}

std::vector<Span> spans_of(const Counts& counts, size_t element) {
  std::vector<Span> spans;
  size_t begin = 0;
  for (const int64_t count : counts) {
    spans.push_back({begin, static_cast<size_t>(count) * element});
    begin += spans.back().size;
  }
  return spans;
}

uint64_t max_pieces(const std::vector<Span>& spans, size_t step) {
  uint64_t most = 0;
  for (const auto& span : spans) {
    most = std::max(most, pieces_in(span.size, step));
  }
  return most;
}

// Rounds down to a multiple of 64, which is a cache line and a multiple of
// every element size.
size_t whole_lines(size_t bytes) {
  return bytes / 64 * 64;
}

// The largest tensor, in bytes, of which every rank adds all elements itself. A
// piece then takes one round instead of two.
constexpr size_t kFlatBytes = size_t{64} * 1024;

class AllReduce final : public ShmCall {
 public:
  AllReduce(
      ShmShape shape,
      size_t slot_bytes,
      const at::Tensor& tensor,
      ReduceOp op)
      : ShmCall(ShmKind::kAllReduce, shape),
        step_(slot_bytes),
        tensor_(tensor),
        op_(op),
        element_(tensor.element_size()),
        // With two ranks, a rank that adds only its half must copy the other
        // half, which takes as long as adding it.
        by_shares_(shape.size > 2 && tensor.nbytes() > kFlatBytes) {}

  uint64_t rounds() const override {
    return pieces_in(tensor_.nbytes(), step_) * (by_shares_ ? 2 : 1);
  }
  bool writes_ahead(uint64_t round) const override {
    return !by_shares_ || round % 2 == 0;
  }
  void write(uint64_t round, std::byte* slot, ShmSlotWriter& writer) override {
    const auto piece = piece_at(round);
    const auto part =
        by_shares_ && round % 2 == 1 ? share_of(piece, shape().rank) : piece;
    writer.copy_for_all(slot, data_of(tensor_) + part.begin, part.size);
  }
  void read(uint64_t round, const ShmSegment& segment, uint64_t at) override {
    const auto piece = piece_at(round);
    if (!by_shares_) {
      add(segment, at, piece, piece);
    } else if (round % 2 == 0) {
      add(segment, at, piece, share_of(piece, shape().rank));
    } else {
      for (int64_t peer = 0; peer < shape().size; ++peer) {
        if (peer != shape().rank) {
          const auto share = share_of(piece, peer);
          copy_bytes(
              data_of(tensor_) + share.begin,
              segment.slot(peer, at),
              share.size);
        }
      }
    }
  }
  c10::ScalarType dtype() const override { return tensor_.scalar_type(); }
  int64_t detail() const override { return static_cast<int64_t>(op_); }
  uint64_t bytes_for(int64_t) const override { return tensor_.nbytes(); }
  uint64_t bytes_from(int64_t) const override { return tensor_.nbytes(); }

 private:
  Span piece_at(uint64_t round) const {
    return piece_of(
        {0, tensor_.nbytes()}, step_, by_shares_ ? round / 2 : round);
  }
  Span share_of(const Span& piece, int64_t rank) const {
    const auto ranks = static_cast<size_t>(shape().size);
    const size_t elements = piece.size / element_;
    const size_t chunk = (elements + ranks - 1) / ranks * element_;
    return piece_of(piece, chunk, static_cast<uint64_t>(rank));
  }
  void add(
      const ShmSegment& segment,
      uint64_t at,
      const Span& piece,
      const Span& part) {
    std::byte* const own = data_of(tensor_) + part.begin;
    std::vector<const void*> rows;
    for (int64_t peer = 0; peer < shape().size; ++peer) {
      rows.push_back(
          peer == shape().rank
              ? own
              : segment.slot(peer, at) + (part.begin - piece.begin));
    }
    reduce_row_pointers(
        own,
        rows.data(),
        shape().size,
        static_cast<int64_t>(part.size / element_),
        tensor_.scalar_type(),
        op_);
  }

  size_t step_;
  at::Tensor tensor_;
  ReduceOp op_;
  size_t element_;
  bool by_shares_;
};

class AllGather final : public ShmCall {
 public:
  AllGather(
      ShmShape shape,
      size_t slot_bytes,
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts)
      : ShmCall(ShmKind::kAllGather, shape),
        step_(slot_bytes),
        output_(output),
        input_(input),
        parts_(spans_of(counts, output.element_size())) {
    auto* const own = data_of(output_) + parts_[shape.rank].begin;
    if (own != data_of(input_)) {
      copy_bytes(own, data_of(input_), input_.nbytes());
    }
  }

  uint64_t rounds() const override { return max_pieces(parts_, step_); }
  void write(uint64_t round, std::byte* slot, ShmSlotWriter& writer) override {
    const auto piece = piece_of({0, input_.nbytes()}, step_, round);
    writer.copy_for_all(slot, data_of(input_) + piece.begin, piece.size);
  }
  void read(uint64_t round, const ShmSegment& segment, uint64_t at) override {
    for (int64_t peer = 0; peer < shape().size; ++peer) {
      if (peer != shape().rank) {
        const auto piece = piece_of(parts_[peer], step_, round);
        copy_bytes(
            data_of(output_) + piece.begin, segment.slot(peer, at), piece.size);
      }
    }
  }
  c10::ScalarType dtype() const override { return output_.scalar_type(); }
  uint64_t bytes_for(int64_t) const override { return input_.nbytes(); }
  uint64_t bytes_from(int64_t peer) const override { return parts_[peer].size; }

 private:
  size_t step_;
  at::Tensor output_;
  at::Tensor input_;
  std::vector<Span> parts_;
};

// Returns the bytes of a lane. A slot has one lane for each rank that reads it.
size_t lane_bytes(size_t slot_bytes, int64_t ranks) {
  return whole_lines(slot_bytes / static_cast<size_t>(ranks));
}

class ReduceScatter final : public ShmCall {
 public:
  ReduceScatter(
      ShmShape shape,
      size_t slot_bytes,
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& counts,
      ReduceOp op)
      : ShmCall(ShmKind::kReduceScatter, shape),
        lane_(lane_bytes(slot_bytes, shape.size)),
        output_(output),
        input_(input),
        parts_(spans_of(counts, input.element_size())),
        op_(op) {}

  uint64_t rounds() const override { return max_pieces(parts_, lane_); }
  void write(uint64_t round, std::byte* slot, ShmSlotWriter& writer) override {
    for (int64_t peer = 0; peer < shape().size; ++peer) {
      if (peer != shape().rank) {
        const auto piece = piece_of(parts_[peer], lane_, round);
        writer.copy_for(
            peer,
            slot + lane_ * peer,
            data_of(input_) + piece.begin,
            piece.size);
      }
    }
  }
  void read(uint64_t round, const ShmSegment& segment, uint64_t at) override {
    const auto& own = parts_[shape().rank];
    const auto piece = piece_of(own, lane_, round);
    std::vector<const void*> rows;
    for (int64_t peer = 0; peer < shape().size; ++peer) {
      rows.push_back(
          peer == shape().rank ? data_of(input_) + piece.begin
                               : segment.slot(peer, at) + lane_ * shape().rank);
    }
    reduce_row_pointers(
        data_of(output_) + (piece.begin - own.begin),
        rows.data(),
        shape().size,
        static_cast<int64_t>(piece.size / input_.element_size()),
        input_.scalar_type(),
        op_);
  }
  c10::ScalarType dtype() const override { return input_.scalar_type(); }
  int64_t detail() const override { return static_cast<int64_t>(op_); }
  uint64_t bytes_for(int64_t peer) const override { return parts_[peer].size; }
  uint64_t bytes_from(int64_t) const override { return output_.nbytes(); }

 private:
  size_t lane_;
  at::Tensor output_;
  at::Tensor input_;
  std::vector<Span> parts_;
  ReduceOp op_;
};

class AllToAll final : public ShmCall {
 public:
  AllToAll(
      ShmShape shape,
      size_t slot_bytes,
      const at::Tensor& output,
      const at::Tensor& input,
      const Counts& output_counts,
      const Counts& input_counts)
      : ShmCall(ShmKind::kAllToAll, shape),
        lane_(lane_bytes(slot_bytes, shape.size)),
        output_(output),
        input_(input),
        from_(spans_of(input_counts, input.element_size())),
        to_(spans_of(output_counts, output.element_size())) {
    const auto& own = from_[shape.rank];
    copy_bytes(
        data_of(output_) + to_[shape.rank].begin,
        data_of(input_) + own.begin,
        own.size);
    // This rank's own part is copied above, so no round moves it.
    to_[shape.rank].size = from_[shape.rank].size = 0;
  }

  uint64_t rounds() const override {
    return std::max(max_pieces(from_, lane_), max_pieces(to_, lane_));
  }
  void write(uint64_t round, std::byte* slot, ShmSlotWriter& writer) override {
    for (int64_t peer = 0; peer < shape().size; ++peer) {
      const auto piece = piece_of(from_[peer], lane_, round);
      writer.copy_for(
          peer, slot + lane_ * peer, data_of(input_) + piece.begin, piece.size);
    }
  }
  void read(uint64_t round, const ShmSegment& segment, uint64_t at) override {
    for (int64_t peer = 0; peer < shape().size; ++peer) {
      const auto piece = piece_of(to_[peer], lane_, round);
      copy_bytes(
          data_of(output_) + piece.begin,
          segment.slot(peer, at) + lane_ * shape().rank,
          piece.size);
    }
  }
  c10::ScalarType dtype() const override { return input_.scalar_type(); }
  uint64_t bytes_for(int64_t peer) const override { return from_[peer].size; }
  uint64_t bytes_from(int64_t peer) const override { return to_[peer].size; }

 private:
  size_t lane_;
  at::Tensor output_;
  at::Tensor input_;
  std::vector<Span> from_;
  std::vector<Span> to_;
};

class Broadcast final : public ShmCall {
 public:
  Broadcast(
      ShmShape shape,
      size_t slot_bytes,
      const at::Tensor& tensor,
      int64_t root)
      : ShmCall(ShmKind::kBroadcast, shape),
        step_(slot_bytes),
        tensor_(tensor),
        root_(root) {}

  uint64_t rounds() const override {
    return pieces_in(tensor_.nbytes(), step_);
  }
  void write(uint64_t round, std::byte* slot, ShmSlotWriter& writer) override {
    if (shape().rank == root_) {
      const auto piece = piece_of({0, tensor_.nbytes()}, step_, round);
      writer.copy_for_all(slot, data_of(tensor_) + piece.begin, piece.size);
    }
  }
  bool reads(int64_t peer) const override { return peer == root_; }
  void read(uint64_t round, const ShmSegment& segment, uint64_t at) override {
    if (shape().rank != root_) {
      const auto piece = piece_of({0, tensor_.nbytes()}, step_, round);
      copy_bytes(
          data_of(tensor_) + piece.begin, segment.slot(root_, at), piece.size);
    }
  }
  c10::ScalarType dtype() const override { return tensor_.scalar_type(); }
  int64_t detail() const override { return root_; }
  uint64_t bytes_for(int64_t) const override { return tensor_.nbytes(); }
  uint64_t bytes_from(int64_t) const override { return tensor_.nbytes(); }

 private:
  size_t step_;
  at::Tensor tensor_;
  int64_t root_;
};

class Barrier final : public ShmCall {
 public:
  explicit Barrier(ShmShape shape) : ShmCall(ShmKind::kBarrier, shape) {}
  uint64_t rounds() const override { return 1; }
  void write(uint64_t, std::byte*, ShmSlotWriter&) override {}
  void read(uint64_t, const ShmSegment&, uint64_t) override {}
  c10::ScalarType dtype() const override { return c10::kByte; }
  uint64_t bytes_for(int64_t) const override { return 0; }
  uint64_t bytes_from(int64_t) const override { return 0; }
};

} // namespace

const char* name_of(ShmKind kind) {
  switch (kind) {
    case ShmKind::kAllReduce:
      return "all_reduce";
    case ShmKind::kAllGather:
      return "all_gather";
    case ShmKind::kReduceScatter:
      return "reduce_scatter";
    case ShmKind::kAllToAll:
      return "all_to_all";
    case ShmKind::kBroadcast:
      return "broadcast";
    case ShmKind::kBarrier:
      return "barrier";
  }
  return "something unknown";
}

bool ShmCall::writes_ahead(uint64_t) const {
  return true;
}

bool ShmCall::reads(int64_t) const {
  return true;
}

std::unique_ptr<ShmCall> shm_all_reduce(
    ShmShape shape,
    size_t slot_bytes,
    const at::Tensor& tensor,
    ReduceOp op) {
  return std::make_unique<AllReduce>(shape, slot_bytes, tensor, op);
}

std::unique_ptr<ShmCall> shm_all_gather(
    ShmShape shape,
    size_t slot_bytes,
    const at::Tensor& output,
    const at::Tensor& input,
    const Counts& counts) {
  return std::make_unique<AllGather>(shape, slot_bytes, output, input, counts);
}

std::unique_ptr<ShmCall> shm_reduce_scatter(
    ShmShape shape,
    size_t slot_bytes,
    const at::Tensor& output,
    const at::Tensor& input,
    const Counts& counts,
    ReduceOp op) {
  return std::make_unique<ReduceScatter>(
      shape, slot_bytes, output, input, counts, op);
}

std::unique_ptr<ShmCall> shm_all_to_all(
    ShmShape shape,
    size_t slot_bytes,
    const at::Tensor& output,
    const at::Tensor& input,
    const Counts& output_counts,
    const Counts& input_counts) {
  return std::make_unique<AllToAll>(
      shape, slot_bytes, output, input, output_counts, input_counts);
}

std::unique_ptr<ShmCall> shm_broadcast(
    ShmShape shape,
    size_t slot_bytes,
    const at::Tensor& tensor,
    int64_t root) {
  return std::make_unique<Broadcast>(shape, slot_bytes, tensor, root);
}

std::unique_ptr<ShmCall> shm_barrier(ShmShape shape) {
  return std::make_unique<Barrier>(shape);
}

} // namespace weft::mesh
