#include "mesh/bootstrap/slurm_list.h"

#include <cctype>
#include <charconv>

#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

/// The largest number of hosts in a list, more than any cluster has. A longer
/// list is a mistake and would take much memory.
constexpr size_t kMaxHosts = 1 << 16;
constexpr size_t kMaxListBytes = 1 << 20;
constexpr size_t kMaxDigits = 9;
constexpr size_t kMaxNameBytes = 255;
constexpr int64_t kMaxTasks = 1 << 24;
constexpr size_t kShownListBytes = 80;

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

bool is_in_a_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' ||
         c == '.' || c == '_';
}

int64_t number_of(std::string_view digits) {
  int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

std::string padded(int64_t value, size_t width) {
  std::string digits = std::to_string(value);
  if (digits.size() < width) {
    digits.insert(0, width - digits.size(), '0');
  }
  return digits;
}

class Scanner {
 public:
  Scanner(const std::string& variable, std::string_view list)
      : variable_(variable), list_(list) {
    if (list.size() > kMaxListBytes) {
      fail(detail::concat(
          "it is ", list.size(), " bytes long, at most ", kMaxListBytes));
    }
  }

  bool at_end() const { return at_ == list_.size(); }
  /// Returns the next character, or '\0' at the end.
  char next() const { return at_end() ? '\0' : list_[at_]; }
  bool take(char c) {
    if (next() != c || at_end()) {
      return false;
    }
    ++at_;
    return true;
  }
  template <class Predicate>
  std::string_view take_while(const Predicate& wanted) {
    const size_t start = at_;
    while (!at_end() && wanted(list_[at_])) {
      ++at_;
    }
    return list_.substr(start, at_ - start);
  }
  std::string_view take_number() {
    const auto digits = take_while(is_digit);
    if (digits.empty() || digits.size() > kMaxDigits) {
      fail(detail::concat(
          "a number of 1 to ",
          kMaxDigits,
          " digits is expected at character ",
          at_ - digits.size() + 1));
    }
    return digits;
  }
  [[noreturn]] void fail(const std::string& what) const {
    std::string shown(list_.substr(0, kShownListBytes));
    if (list_.size() > kShownListBytes) {
      shown += "...";
    }
    throw_error<UsageError>(detail::concat(
        "[environment] ", variable_, "=", shown, " cannot be read: ", what));
  }
  [[noreturn]] void fail_here(const std::string& expected) const {
    fail(detail::concat(
        expected,
        " is expected at character ",
        at_ + 1,
        at_end() ? ", the end" : ""));
  }

 private:
  const std::string& variable_;
  std::string_view list_;
  size_t at_ = 0;
};

void check_count(const Scanner& scanner, size_t count) {
  if (count > kMaxHosts) {
    scanner.fail(detail::concat("it has more than ", kMaxHosts, " hosts"));
  }
}

/// Reads the numbers that follow a '[': "001-003,007]".
std::vector<std::string> read_bracket(Scanner& scanner) {
  std::vector<std::string> numbers;
  do {
    const auto first = scanner.take_number();
    const auto last = scanner.take('-') ? scanner.take_number() : first;
    const int64_t begin = number_of(first);
    const int64_t end = number_of(last);
    if (end < begin) {
      scanner.fail(detail::concat("the range ", first, "-", last, " is empty"));
    }
    check_count(scanner, numbers.size() + static_cast<size_t>(end - begin) + 1);
    for (int64_t value = begin; value <= end; ++value) {
      numbers.push_back(padded(value, first.size()));
    }
  } while (scanner.take(','));
  if (!scanner.take(']')) {
    scanner.fail_here("',' or ']'");
  }
  return numbers;
}

std::vector<std::string> combine(
    const Scanner& scanner,
    const std::vector<std::string>& names,
    const std::vector<std::string>& endings) {
  check_count(scanner, names.size() * endings.size());
  std::vector<std::string> combined;
  combined.reserve(names.size() * endings.size());
  for (const auto& name : names) {
    for (const auto& ending : endings) {
      combined.push_back(name);
      combined.back().append(ending);
    }
  }
  if (combined.front().size() > kMaxNameBytes) {
    scanner.fail("a host's name is too long");
  }
  return combined;
}

/// Reads the hosts up to the next ',' outside of brackets: "gpu-a[1-2]b[3-4]".
std::vector<std::string> read_hosts(Scanner& scanner) {
  std::vector<std::string> names{""};
  while (!scanner.at_end() && scanner.next() != ',') {
    if (scanner.take('[')) {
      names = combine(scanner, names, read_bracket(scanner));
      continue;
    }
    const auto literal = scanner.take_while(is_in_a_name);
    if (literal.empty()) {
      scanner.fail_here("a letter, a digit, '-', '.', '_', '[' or ','");
    }
    names = combine(scanner, names, {std::string(literal)});
  }
  if (names.front().empty()) {
    scanner.fail_here("a host");
  }
  return names;
}

} // namespace

std::vector<std::string> expand_host_list(
    const std::string& variable,
    std::string_view list) {
  Scanner scanner(variable, list);
  std::vector<std::string> hosts;
  do {
    const auto more = read_hosts(scanner);
    check_count(scanner, hosts.size() + more.size());
    hosts.insert(hosts.end(), more.begin(), more.end());
  } while (scanner.take(','));
  return hosts;
}

std::vector<int64_t> expand_task_counts(
    const std::string& variable,
    std::string_view list) {
  Scanner scanner(variable, list);
  std::vector<int64_t> counts;
  do {
    const int64_t tasks = number_of(scanner.take_number());
    if (tasks < 1 || tasks > kMaxTasks) {
      scanner.fail(
          detail::concat(tasks, " tasks on a host, expected 1 to ", kMaxTasks));
    }
    int64_t hosts = 1;
    if (scanner.take('(')) {
      if (!scanner.take('x')) {
        scanner.fail_here("'x'");
      }
      hosts = number_of(scanner.take_number());
      if (hosts < 1) {
        scanner.fail("got a repeat count of 0, expected at least 1");
      }
      if (!scanner.take(')')) {
        scanner.fail_here("')'");
      }
    }
    check_count(scanner, counts.size() + static_cast<size_t>(hosts));
    counts.insert(counts.end(), static_cast<size_t>(hosts), tasks);
  } while (scanner.take(','));
  if (!scanner.at_end()) {
    scanner.fail_here("',' or the end");
  }
  return counts;
}

} // namespace weft::mesh
