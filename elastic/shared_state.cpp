#include "elastic/shared_state.h"

#include <utility>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "base/fnv.h"
#include "base/string_streams.h"
#include "data_parallel/parameters/module_state.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

namespace weft::elastic {
namespace {

std::pair<std::string, std::string> first_difference(
    const std::string& one,
    const std::string& other) {
  base::StringReader lines(one);
  base::StringReader other_lines(other);
  std::string line;
  std::string other_line;
  do {
    line = other_line = "nothing more";
    std::getline(lines, line);
    std::getline(other_lines, other_line);
  } while (line == other_line && lines && other_lines);
  return {
      line.empty() ? "nothing more" : line,
      other_line.empty() ? "nothing more" : other_line};
}

} // namespace

void SharedState::add(std::string name, Get get, Load load) {
  parts_.push_back({std::move(name), std::move(get), std::move(load)});
}

void SharedState::set_text(const std::string& name, std::string text) {
  for (auto& [known, value] : texts_) {
    if (known == name) {
      value = std::move(text);
      return;
    }
  }
  texts_.emplace_back(name, std::move(text));
}

void SharedState::add_numbers(std::string name, Describe describe) {
  numbers_.emplace_back(std::move(name), std::move(describe));
}

std::string SharedState::describe_numbers() const {
  base::StringWriter out;
  for (const auto& [name, text] : texts_) {
    out << name << ' ' << text << '\n';
  }
  for (const auto& [name, describe] : numbers_) {
    const auto described = describe();
    base::StringReader lines(described);
    for (std::string line; std::getline(lines, line);) {
      out << name << ' ' << line << '\n';
    }
  }
  return out.str();
}

uint64_t SharedState::hash_of_numbers() const {
  return base::fnv1a(describe_numbers());
}

void SharedState::check_numbers(mesh::Communicator& group, int64_t step) const {
  const auto texts =
      mesh::all_gather_text(group, describe_numbers(), "numbers");
  try {
    group.barrier("numbers"); // No rank may leave before all have the texts.
  } catch (const mesh::CommError&) {
  }
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) {
      continue;
    }
    const auto [first, other] = first_difference(texts[0], texts[rank]);
    mesh::throw_error<mesh::DisagreementError>(mesh::detail::concat(
        "[elastic] the groups would apply step ",
        step,
        " with other options: the first one has \"",
        first,
        "\", and group ",
        rank,
        " has \"",
        other,
        "\". Set them from Step::number() in each step, or register what they "
        "are computed from (Manager::register_state), such as the steps of a "
        "scheduler"));
  }
}

std::string SharedState::describe() const {
  base::StringWriter out;
  for (const auto& [name, text] : texts_) {
    out << name << ' ' << text << '\n';
  }
  for (const auto& part : parts_) {
    for (const auto& [name, tensor] : part.get()) {
      const auto local = data_parallel::local_part(tensor);
      out << part.name << '.' << name << ' ' << local.sizes() << ' '
          << local.scalar_type() << '\n';
    }
  }
  return out.str();
}

void SharedState::check_alike(mesh::Communicator& group, int64_t source) const {
  const auto own = describe();
  const auto hash = at::tensor({static_cast<int64_t>(base::fnv1a(own))});
  auto all = at::zeros({group.size(), 1}, at::kLong);
  group.all_gather(all, hash, "states").wait();
  if (all.eq(hash).all().item<bool>()) {
    return;
  }
  const auto texts = mesh::all_gather_text(group, own, "states");
  try {
    group.barrier("states"); // No rank may leave before all have the texts.
  } catch (const mesh::CommError&) {
  }
  const auto& expected = texts[static_cast<size_t>(source)];
  if (own == expected) {
    mesh::throw_error<mesh::CommError>(
        "[elastic] a group of the epoch has registered another state, and "
        "ends");
  }
  const auto [here, there] = first_difference(own, expected);
  mesh::throw_error<mesh::DisagreementError>(mesh::detail::concat(
      "[elastic] this group differs from those that train: it has \"",
      here,
      "\", and they have \"",
      there,
      "\". Start it with the same program, model, data and options, and "
      "register the same states in the same order"));
}

SharedState::Tensors SharedState::tensors() const {
  Tensors result;
  for (const auto& part : parts_) {
    result.push_back(part.get());
  }
  return result;
}

void SharedState::loaded(const Tensors& tensors) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].load) {
      parts_[i].load(tensors[i]);
    }
  }
}

} // namespace weft::elastic
