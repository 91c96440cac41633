#include "mesh/agreement.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "mesh/error.h"
#include "mesh/failure.h"

namespace weft::mesh {
namespace {

constexpr size_t kLongestValue = 4096;
constexpr size_t kShownBytes = 160;
constexpr char kSeparator = '\n';
constexpr const char* kAgreed = "=";

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const unsigned char c : text) {
    hash = (hash ^ c) * 1099511628211ULL;
  }
  return hash;
}

/// The value, or if it is long its beginning and a hash of it all.
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
      fnv1a(value),
      ")");
}

/// At most kShownBytes characters from shortly before position `from`.
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
      "'. Start every rank with the same program, recipe and overrides.");
}

[[noreturn]] void throw_absent(
    const AgreementParty& party,
    const std::string& what,
    const std::string& who,
    const std::exception& cause) {
  throw_error<CommError>(detail::concat(
      "[",
      what,
      "] ",
      failure_reason(cause, party.timeout),
      ". ",
      who,
      " (rank ",
      party.rank,
      "/",
      party.world_size,
      ")"));
}

/// Runs `body`; what the store throws becomes a CommError.
template <class Body>
auto with_store(
    const AgreementParty& party,
    const std::string& what,
    const std::function<std::string()>& who,
    const Body& body) {
  try {
    return body();
  } catch (const std::exception& cause) {
    std::string missing;
    try {
      missing = who();
    } catch (const std::exception&) {
      missing = "The store does not answer.";
    }
    throw_absent(party, what, missing, cause);
  }
}

std::string first_missing(
    const AgreementParty& party,
    const std::vector<std::string>& keys) {
  for (size_t rank = 0; rank < keys.size(); ++rank) {
    if (!party.store.check({keys[rank]})) {
      return detail::concat("Rank ", rank, " has not come.");
    }
  }
  return "All ranks have come.";
}

/// Reads all ranks' values and returns the verdict.
std::string judge(
    const AgreementParty& party,
    const std::string& prefix,
    std::string_view field,
    const std::string& own) {
  std::vector<std::string> keys;
  keys.reserve(party.world_size);
  for (int64_t rank = 0; rank < party.world_size; ++rank) {
    keys.push_back(prefix + std::to_string(rank));
  }
  const auto values = with_store(
      party,
      "agreement",
      [&] { return first_missing(party, keys); },
      [&] {
        party.store.wait(keys, party.timeout);
        return party.store.multiGet(keys);
      });
  std::string verdict = kAgreed;
  for (int64_t rank = 0; rank < party.world_size; ++rank) {
    const std::string text(values[rank].begin(), values[rank].end());
    const size_t end = text.find(kSeparator);
    const std::string other_field = text.substr(0, end);
    if (other_field != field) {
      return describe_difference(
          "what is compared", std::string(field), rank, other_field);
    }
    const std::string other = text.substr(end + 1);
    if (other != own) {
      return describe_difference(field, own, rank, other);
    }
  }
  return verdict;
}

} // namespace

void check_agreement(
    const AgreementParty& party,
    int64_t sequence,
    std::string_view field,
    std::string_view value) {
  const std::string prefix = detail::concat("agreement/", sequence, "/");
  const std::string verdict_key = prefix + "verdict";
  const std::string own = digest(value);
  const auto nobody = [] { return std::string("Rank 0 gave no verdict."); };
  with_store(party, "agreement", nobody, [&] {
    party.store.set(
        prefix + std::to_string(party.rank),
        detail::concat(field, kSeparator, own));
  });
  std::string verdict;
  if (party.rank == 0) {
    verdict = judge(party, prefix, field, own);
    with_store(party, "agreement", nobody, [&] {
      party.store.set(verdict_key, verdict);
    });
  } else {
    verdict = with_store(party, "agreement", nobody, [&] {
      party.store.wait({verdict_key}, party.timeout);
      return party.store.get_to_str(verdict_key);
    });
  }
  if (verdict != kAgreed) {
    throw_error<DisagreementError>(verdict);
  }
}

void meet(const AgreementParty& party) {
  const auto who = [&] {
    return detail::concat(
        party.store.add("arrived", 0),
        " of ",
        party.world_size,
        " ranks came.");
  };
  with_store(party, "rendezvous", who, [&] {
    if (party.store.add("arrived", 1) == party.world_size) {
      party.store.set("all_arrived", std::string("1"));
    }
    party.store.wait({"all_arrived"}, party.timeout);
  });
}

} // namespace weft::mesh
