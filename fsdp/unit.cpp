#include "fsdp/unit.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"

namespace weft::fsdp {

Unit::Unit(
    std::string name,
    std::vector<ShardedParameter> parameters,
    const FullyShardOptions& options,
    bool reshards_after_forward,
    mesh::Communicator group,
    std::optional<mesh::Communicator> replicas)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      states_(parameters_.size()),
      options_(options),
      reshards_after_forward_(reshards_after_forward),
      group_(std::move(group)),
      replicas_(std::move(replicas)) {
  const auto& policy = options_.mixed_precision;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto dtype = parameters_[i].dtype();
    auto part = std::ranges::find(parts_, dtype, &Part::dtype);
    if (part == parts_.end()) {
      part = parts_.insert(parts_.end(), Part());
      part->dtype = dtype;
      part->unsharded_dtype = parameters_[i].unsharded_dtype();
      part->gradient_dtype =
          cast_dtype(part->unsharded_dtype, policy.reduce_dtype);
    }
    states_[i].part = static_cast<size_t>(part - parts_.begin());
    states_[i].slot = part->parameters.size();
    part->parameters.push_back(i);
    part->offsets.push_back(part->numel);
    part->numel += parameters_[i].part_numel();
  }
  for (auto& part : parts_) {
    const auto& first = parameters_[part.parameters.front()].tensor();
    part.shards = at::zeros(
        {part.numel},
        data_parallel::local_part(first).options().dtype(part.dtype));
    for (size_t slot = 0; slot < part.parameters.size(); ++slot) {
      auto& parameter = parameters_[part.parameters[slot]];
      parameter.move_shard_to(
          part.shards.narrow(0, part.offsets[slot], parameter.part_numel()));
    }
  }
}

int64_t Unit::unsharded_bytes() const {
  int64_t bytes = 0;
  for (const auto& parameter : parameters_) {
    bytes += parameter.unsharded_bytes();
  }
  return bytes;
}

// Returns the parts of one parameter in a gathered message. Shape of the
// message: [ranks, ...].
at::Tensor Unit::parts_of(const at::Tensor& message, size_t index) const {
  const auto& state = states_[index];
  return message.narrow(
      1,
      parts_[state.part].offsets[state.slot],
      parameters_[index].part_numel());
}

void Unit::start_unshard(UnitMemory& memory) {
  if (!is_gathered_soon()) {
    start_gather(memory, /*in_full_precision=*/false);
  }
}

// With one rank, copying the rows to the message also casts them.
void Unit::start_gather(UnitMemory& memory, bool in_full_precision) {
  for (auto& parameter : parameters_) {
    parameter.adopt_new_shard();
  }
  const at::NoGradGuard no_grad;
  is_in_full_precision_ = in_full_precision;
  gathers_kept_ = !in_full_precision && parts_.front().kept.defined();
  for (auto& part : parts_) {
    const auto options = part.shards.options().dtype(
        in_full_precision ? part.dtype : part.unsharded_dtype);
    auto shards = part.shards;
    if (!gathers_kept_ && shards.dtype() != options.dtype() &&
        group_.size() > 1) {
      part.cast_shards = memory.messages.take_tensor({part.numel}, options);
      part.cast_shards.copy_(part.shards);
      shards = part.cast_shards;
    }
    part.gathered =
        memory.messages.take_tensor({group_.size(), part.numel}, options);
    if (gathers_kept_) {
      part.gather = reshard_group_->all_gather(part.gathered, part.kept, name_);
    } else if (group_.size() > 1) {
      part.gather = group_.all_gather(part.gathered, shards, name_);
    } else {
      part.gathered.view({-1}).copy_(shards);
    }
  }
  is_gathering_ = true;
}

void Unit::unshard(UnitMemory& memory) {
  if (!is_unsharded_) {
    start_unshard(memory);
    finish_unshard(memory);
  }
}

void Unit::unshard_in_full_precision(UnitMemory& memory) {
  const bool is_cast = std::ranges::any_of(parts_, [](const auto& part) {
    return part.unsharded_dtype != part.dtype;
  });
  if (!is_cast) {
    unshard(memory);
  } else if (!is_unsharded_ || !is_in_full_precision_) {
    reshard(memory);
    start_gather(memory, /*in_full_precision=*/true);
    finish_unshard(memory);
  }
}

void Unit::finish_unshard(UnitMemory& memory) {
  for (auto& part : parts_) {
    part.gather.wait();
    for (const size_t index : part.parameters) {
      auto& parameter = parameters_[index];
      const auto parts = parts_of(part.gathered, index);
      if (parameter.is_unsharded()) {
        continue;
      }
      if (is_in_full_precision_) {
        parameter.unshard_in_full_precision(parts);
      } else {
        parameter.unshard(parts, memory.unsharded);
      }
    }
  }
  if (keeps_for_backward_ && reshard_group_ && !is_in_full_precision_) {
    // A unit that is used again in the same forward already has its kept part.
    if (!std::exchange(gathers_kept_, false)) {
      for (auto& part : parts_) {
        keep_part(part, memory);
      }
    }
  }
  finish_gather(memory);
  is_unsharded_ = true;
}

void Unit::set_reshard_group(mesh::Communicator group) {
  reshard_group_ = std::move(group);
}

void Unit::keep_part(Part& part, UnitMemory& memory) {
  const at::NoGradGuard no_grad;
  const auto rows = group_.size() / reshard_group_->size();
  const auto own = part.gathered.narrow(0, reshard_group_->rank() * rows, rows);
  part.kept = memory.messages.take_tensor(own.sizes(), part.gathered.options());
  part.kept.copy_(own);
}

void Unit::drop_kept(UnitMemory& memory) {
  gathers_kept_ = false;
  for (auto& part : parts_) {
    if (part.kept.defined()) {
      memory.messages.give_tensor(std::move(part.kept));
    }
  }
}

void Unit::write_back() {
  for (auto& parameter : parameters_) {
    parameter.write_back();
  }
}

void Unit::finish_gather(UnitMemory& memory) {
  if (!is_gathering_) {
    return;
  }
  for (auto& part : parts_) {
    part.gather.wait();
    part.gather = mesh::Work();
    if (part.cast_shards.defined()) {
      memory.messages.give_tensor(std::move(part.cast_shards));
    }
    memory.messages.give_tensor(std::move(part.gathered));
  }
  if (gathers_kept_) {
    drop_kept(memory);
  }
  is_gathering_ = false;
}

void Unit::reshard(UnitMemory& memory) {
  finish_gather(memory);
  is_unsharded_ = false;
  is_in_full_precision_ = false;
  std::exception_ptr error;
  for (auto& parameter : parameters_) {
    if (!parameter.is_unsharded()) {
      continue; // All are sharded, or unshard() failed before this one.
    }
    try {
      parameter.reshard(memory.unsharded);
    } catch (...) {
      error = error ? error : std::current_exception();
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

} // namespace weft::fsdp
