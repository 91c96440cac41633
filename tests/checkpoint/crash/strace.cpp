#include "tests/checkpoint/crash/strace.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string text_of_file(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool is_traced(const fs::path& status) {
  return text_of_file(status).find("TracerPid:\t0\n") == std::string::npos;
}

bool has_all_threads(pid_t pid) {
  const fs::path tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : fs::directory_iterator(tasks)) {
    if (!is_traced(task.path() / "status")) {
      return false;
    }
  }
  return true;
}

pid_t start(const std::vector<std::string>& words, const fs::path& messages) {
  std::vector<char*> arguments;
  for (const auto& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int fd = ::open(messages.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ::dup2(fd, STDERR_FILENO);
    ::execvp(arguments[0], arguments.data());
    (void)!::write(STDERR_FILENO, "there is no strace", 18);
    ::_exit(127);
  }
  return pid;
}

} // namespace

Strace::Strace(
    pid_t pid,
    const std::string& calls,
    const std::string& fault,
    fs::path log) {
  std::vector<std::string> words = {
      "strace", "-f", "-qq", "-y", "-s", "300", "-p", std::to_string(pid)};
  words.insert(words.end(), {"-o", log.string(), "-e", "trace=" + calls});
  if (!fault.empty()) {
    words.insert(words.end(), {"-e", "inject=" + calls + ":" + fault});
  }
  kills_ = fault.starts_with("signal=KILL");
  const auto messages = log.string() + ".stderr";
  strace_ = start(words, messages);
  const auto limit = Clock::now() + std::chrono::seconds(10);
  while (!has_all_threads(pid)) {
    int status = 0;
    if (::waitpid(strace_, &status, WNOHANG) == strace_) {
      strace_ = -1;
      throw StraceMissing("strace: " + text_of_file(messages));
    }
    if (Clock::now() > limit) {
      throw StraceMissing("strace does not attach");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool Strace::ends_within(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (strace_ > 0 && ::waitpid(strace_, nullptr, WNOHANG) == 0) {
    if (Clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  strace_ = -1;
  return true;
}

// One that is told to leave while its process dies waits for a thread that it
// would have to bury first.
Strace::~Strace() {
  constexpr std::chrono::seconds kLimit(3);
  if (kills_ && ends_within(kLimit)) {
    return;
  }
  for (const int signal : {SIGINT, SIGKILL}) {
    if (strace_ > 0) {
      ::kill(strace_, signal);
      ends_within(kLimit);
    }
  }
}

std::vector<TracedCall> read_strace_log(const fs::path& log) {
  std::vector<TracedCall> calls;
  std::map<std::pair<std::string, std::string>, int> counts;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    // "1234  fsync(5</path>) = 0"; "1234 <... fsync resumed>" is no new one.
    const auto name = line.find_first_not_of("0123456789 ");
    const auto open = line.find('(');
    if (name == std::string::npos || open == std::string::npos ||
        line[name] == '<' || line[name] == '+' || line[name] == '-') {
      continue;
    }
    TracedCall call;
    call.name = line.substr(name, open - name);
    call.when = ++counts[{line.substr(0, line.find(' ')), call.name}];
    call.text = line.substr(name);
    calls.push_back(std::move(call));
  }
  return calls;
}

} // namespace weft::test
