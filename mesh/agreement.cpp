#include "mesh/agreement.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/fnv.h"
#include "base/json_text.h"
#include "mesh/bootstrap/cancellable_store.h"
#include "mesh/communicator/format.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"

namespace weft::mesh {
namespace {

constexpr size_t kLongestValue = size_t{64} * 1024;
constexpr size_t kShownBytes = 160;
constexpr const char* kAgreed = "=";
/// The time that rank 0 gives the other ranks to read a difference before it
/// throws, because the store may end with rank 0.
constexpr std::chrono::seconds kDifferenceLimit{2};

std::string digest(std::string_view value) {
  if (value.size() <= kLongestValue) {
    return std::string(value);
  }
  return detail::concat(
      value.substr(0, kLongestValue),
      "... (",
      value.size(),
      " bytes, hash ",
      std::hex,
      base::fnv1a(value),
      ")");
}

std::string excerpt(const std::string& value, size_t from) {
  constexpr size_t kBefore = kShownBytes / 4;
  const size_t begin =
      value.size() <= kShownBytes || from < kBefore ? 0 : from - kBefore;
  const std::string text = value.substr(begin, kShownBytes);
  return (begin > 0 ? "..." : "") + text +
         (begin + text.size() < value.size() ? "..." : "");
}

std::string describe_difference(
    std::string_view field,
    const std::string& first,
    int64_t rank,
    const std::string& other) {
  const auto at =
      std::mismatch(first.begin(), first.end(), other.begin(), other.end());
  const auto from = static_cast<size_t>(at.first - first.begin());
  return detail::concat(
      "[agreement] ",
      field,
      ": rank 0 has '",
      excerpt(first, from),
      "' vs rank ",
      rank,
      " has '",
      excerpt(other, from),
      "'. Start every rank with the same program, recipe, overrides and "
      "environment.");
}

[[noreturn]] void throw_absent(
    const AgreementContext& context,
    const std::string& what,
    const std::string& who,
    const std::exception& cause) {
  const auto failure = failure_reason(cause, context.timeout);
  throw_comm_error(
      detail::concat(
          "[",
          what,
          "] ",
          failure.reason,
          ". ",
          who,
          " (rank ",
          context.rank,
          "/",
          context.world_size,
          ")"),
      failure.is_timeout);
}

/// Runs `body`. Turns an exception into a CommError that contains the text of
/// who(), except if this rank is out of memory.
template <class Body>
auto with_store(
    const AgreementContext& context,
    const std::string& what,
    const std::function<std::string()>& who,
    const Body& body) {
  try {
    return body();
  } catch (const std::exception& cause) {
    rethrow_if_out_of_memory(cause);
    std::string missing;
    try {
      missing = who();
    } catch (const std::exception&) {
      missing = "The store does not answer.";
    }
    throw_absent(context, what, missing, cause);
  }
}

std::string first_missing(
    const AgreementContext& context,
    const std::vector<std::string>& keys) {
  for (size_t rank = 0; rank < keys.size(); ++rank) {
    if (!context.store.check({keys[rank]})) {
      return detail::concat("Rank ", rank, " has not arrived.");
    }
  }
  return "All ranks have arrived.";
}

std::string pack(const std::vector<AgreedValue>& values) {
  using nlohmann::json;
  auto list = json::array();
  for (const auto& value : values) {
    list.push_back({value.field, digest(value.value)});
  }
  return base::json_text(list);
}

std::vector<AgreedValue> unpack(const std::string& text) {
  std::vector<AgreedValue> values;
  for (const auto& pair : base::parse_json(text)) {
    values.push_back({pair.at(0), pair.at(1)});
  }
  return values;
}

/// Describes the first field or value in which `other`, which `rank` passed,
/// differs from `first`, which rank 0 passed.
std::string first_difference(
    const std::vector<AgreedValue>& first,
    int64_t rank,
    const std::vector<AgreedValue>& other) {
  const AgreedValue nothing{"nothing more", ""};
  for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
    const auto& ours = i < first.size() ? first[i] : nothing;
    const auto& theirs = i < other.size() ? other[i] : nothing;
    if (ours.field != theirs.field) {
      return describe_difference(
          "what is compared", ours.field, rank, theirs.field);
    }
    if (ours.value != theirs.value) {
      return describe_difference(ours.field, ours.value, rank, theirs.value);
    }
  }
  // The hashes differ but the packed values do not, because pack() replaces
  // bytes that are not UTF-8.
  return describe_difference("a value", "its bytes", rank, "others");
}

struct AgreementKeys {
  std::string prefix;
  std::string verdict() const { return prefix + "verdict"; }
  /// The key that counts the ranks that have read a difference.
  std::string heard() const { return prefix + "heard"; }
  std::string hash(int64_t rank) const {
    return detail::concat(prefix, "hash/", rank);
  }
  std::string values(int64_t rank) const {
    return detail::concat(prefix, "values/", rank);
  }
};

/// Compares the hashes of all ranks with rank 0's. Returns kAgreed or a
/// description of the first difference. Rank 0 calls it.
std::string judge(
    const AgreementContext& context,
    const AgreementKeys& keys,
    const std::string& own_hash,
    const std::string& own) {
  std::vector<std::string> hashes;
  for (int64_t rank = 0; rank < context.world_size; ++rank) {
    hashes.push_back(keys.hash(rank));
  }
  return with_store(
      context,
      "agreement",
      [&] { return first_missing(context, hashes); },
      [&]() -> std::string {
        context.store.wait(hashes, context.timeout);
        const auto found = context.store.multiGet(hashes);
        for (int64_t rank = 0; rank < context.world_size; ++rank) {
          if (std::string(found[rank].begin(), found[rank].end()) == own_hash) {
            continue;
          }
          return first_difference(
              unpack(own),
              rank,
              unpack(context.store.get_to_str(keys.values(rank))));
        }
        return kAgreed;
      });
}

/// Returns a hash of the full fields and values. pack() shortens long values.
std::string hash_of(const std::vector<AgreedValue>& values) {
  std::string text;
  for (const auto& value : values) {
    text += detail::concat(
        value.field.size(), ' ', value.field, value.value.size(), ' ');
    text += value.value;
  }
  return std::to_string(base::fnv1a(text));
}

} // namespace

void check_agreement(
    const AgreementContext& context,
    int64_t sequence,
    const std::vector<AgreedValue>& values) {
  const AgreementKeys keys{detail::concat("agreement/", sequence, "/")};
  const auto own = pack(values);
  const auto own_hash = hash_of(values);
  const auto nobody = [] { return std::string("Rank 0 gave no verdict."); };
  with_store(context, "agreement", nobody, [&] {
    context.store.set(keys.values(context.rank), own);
    context.store.set(keys.hash(context.rank), own_hash);
  });
  std::string verdict;
  if (context.rank == 0) {
    verdict = judge(context, keys, own_hash, own);
    with_store(context, "agreement", nobody, [&] {
      context.store.set(keys.verdict(), verdict);
      if (verdict != kAgreed) {
        await_count(
            context.store,
            keys.heard(),
            context.world_size - 1,
            kDifferenceLimit);
      }
    });
  } else {
    verdict = with_store(context, "agreement", nobody, [&] {
      context.store.wait({keys.verdict()}, context.timeout);
      auto text = context.store.get_to_str(keys.verdict());
      if (text != kAgreed) {
        context.store.add(keys.heard(), 1);
      }
      return text;
    });
  }
  if (verdict != kAgreed) {
    throw_error<DisagreementError>(verdict);
  }
  with_store(context, "agreement", nobody, [&] {
    context.store.deleteKey(keys.values(context.rank));
  });
}

void rendezvous_barrier(const AgreementContext& context) {
  const auto key = [](int64_t rank) {
    return detail::concat("arrived/", rank);
  };
  const auto who = [&] {
    std::vector<int64_t> missing;
    for (int64_t rank = 0; rank < context.world_size; ++rank) {
      if (!context.store.check({key(rank)})) {
        missing.push_back(rank);
      }
    }
    const auto came = context.world_size - static_cast<int64_t>(missing.size());
    return detail::concat(
        came,
        " of ",
        context.world_size,
        " ranks came, without ",
        ranks_text(missing),
        ".");
  };
  with_store(context, "rendezvous", who, [&] {
    context.store.set(key(context.rank), std::string("1"));
    if (context.store.add("arrived", 1) == context.world_size) {
      context.store.set("all_arrived", std::string("1"));
    }
    context.store.wait({"all_arrived"}, context.timeout);
  });
}

} // namespace weft::mesh
