#include "tests/integration/process.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

template <class Result>
int checked(Result result, const char* what) {
  if (result < 0) {
    throw std::runtime_error(what);
  }
  return static_cast<int>(result);
}

int nameless_file(const fs::path& folder) {
  return checked(
      open(folder.c_str(), O_TMPFILE | O_RDWR | O_APPEND | O_CLOEXEC, 0600),
      "open O_TMPFILE");
}

std::string text_of(int fd) {
  std::string text;
  std::array<char, 65536> buffer;
  ssize_t size = 0;
  while (
      (size = pread(
           fd, buffer.data(), buffer.size(), static_cast<off_t>(text.size()))) >
      0) {
    text.append(buffer.data(), static_cast<size_t>(size));
  }
  return text;
}

bool is_launchers(std::string_view entry) {
  for (const auto* prefix :
       {"RANK=",
        "WORLD_SIZE=",
        "LOCAL_",
        "MASTER_",
        "GROUP_",
        "ROLE_",
        "PET_",
        "TORCH",
        "WEFT_",
        "OMP_",
        "OMPI_",
        "PMI",
        "MPI_LOCAL",
        "SLURM_"}) {
    if (entry.starts_with(prefix)) {
      return true;
    }
  }
  return false;
}

std::vector<std::string> clean_environment(
    const Process::Variables& variables) {
  std::vector<std::string> environment{"OMP_NUM_THREADS=1"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!is_launchers(*entry)) {
      environment.emplace_back(*entry);
    }
  }
  for (const auto& [name, value] : variables) {
    environment.push_back(name + "=" + value);
  }
  return environment;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& string : strings) {
    result.push_back(string.data());
  }
  result.push_back(nullptr);
  return result;
}

struct ForkedProgram {
  std::string path;
  std::function<int(int, char**)> main;
};

ForkedProgram& forked_program() {
  static ForkedProgram program;
  return program;
}

/// Whether nothing but Weft reads them, when it needs them.
bool are_of_the_job(const Process::Variables& variables) {
  return std::ranges::all_of(variables, [](const auto& variable) {
    const std::string_view name = variable.first;
    return name == "RANK" || name == "WORLD_SIZE" ||
           name.starts_with("LOCAL_") || name.starts_with("MASTER_");
  });
}

bool is_started_by_fork(
    const std::string& path,
    const Process::Variables& variables) {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  const fs::directory_iterator tasks("/proc/self/task");
  return path == forked_program().path && are_of_the_job(variables) &&
         threads != nullptr && std::string_view(threads) == "1" &&
         std::distance(begin(tasks), end(tasks)) == 1;
}

pid_t parent_of(const fs::path& process) {
  const auto stat = test::read_text(process / "stat");
  // "pid (name) state parent ...", where the name may hold anything.
  std::istringstream rest(stat.substr(std::min(stat.rfind(')'), stat.size())));
  std::string word;
  pid_t parent = -1;
  rest >> word >> word >> parent;
  return parent;
}

std::optional<int> rank_of(const fs::path& process) {
  std::istringstream environment(test::read_text(process / "environ"));
  for (std::string entry; std::getline(environment, entry, '\0');) {
    if (entry.starts_with("RANK=")) {
      return std::stoi(entry.substr(5));
    }
  }
  return std::nullopt;
}

} // namespace

ProcessWatch::ProcessWatch(pid_t pid)
    : pid_(pid), fd_(checked(syscall(SYS_pidfd_open, pid, 0), "pidfd_open")) {}

ProcessWatch::ProcessWatch(ProcessWatch&& other) noexcept
    : pid_(other.pid_), fd_(std::exchange(other.fd_, -1)) {}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

bool ProcessWatch::ends_within(std::chrono::milliseconds limit) const {
  pollfd polled{.fd = fd_, .events = POLLIN, .revents = 0};
  return poll(&polled, 1, static_cast<int>(limit.count())) == 1;
}

Process::Process(
    std::vector<std::string> words,
    const fs::path& folder,
    const Variables& variables)
    : output_(nameless_file(folder)), error_(nameless_file(folder)) {
  auto environment = clean_environment(variables);
  auto argv = pointers(words);
  auto envp = pointers(environment);
  const bool is_fork = is_started_by_fork(words.at(0), variables);
  std::cout.flush();
  std::fflush(nullptr); // What is buffered is not the child's to write.
  const pid_t pid = checked(fork(), "fork");
  if (pid == 0) {
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(output_, STDOUT_FILENO);
    dup2(error_, STDERR_FILENO);
    if (chdir(folder.c_str()) != 0) {
      _exit(127);
    }
    if (is_fork) {
      close(output_);
      close(error_);
      environ = envp.data();
      base::end_process(
          forked_program().main(static_cast<int>(words.size()), argv.data()));
    }
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  watch_.emplace(pid);
}

Process::~Process() {
  if (!code_) {
    send(SIGKILL);
    waitpid(pid(), nullptr, 0);
  }
  close(output_);
  close(error_);
}

void Process::send(int signal) const {
  kill(pid(), signal);
}

std::optional<int> Process::wait(std::chrono::seconds limit) {
  if (!code_ && watch_->ends_within(limit)) {
    int status = 0;
    checked(waitpid(pid(), &status, 0), "waitpid");
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return code_;
}

std::string Process::output() const {
  return text_of(output_);
}

std::string Process::error() const {
  return text_of(error_);
}

std::string Process::last_error_line() const {
  const auto lines = lines_of(error());
  return lines.empty() ? "" : lines.back();
}

void start_by_fork(std::string path, std::function<int(int, char**)> main) {
  forked_program() = {std::move(path), std::move(main)};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<int, ProcessWatch> workers_of(pid_t parent) {
  std::map<int, ProcessWatch> workers;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos &&
        parent_of(entry.path()) == parent) {
      if (const auto rank = rank_of(entry.path())) {
        workers.emplace(*rank, ProcessWatch(std::stoi(name)));
      }
    }
  }
  return workers;
}

int free_port() {
  const int fd =
      checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  checked(bind(fd, any, size), "bind");
  checked(getsockname(fd, any, &size), "getsockname");
  close(fd);
  return ntohs(address.sin_port);
}

} // namespace weft::test
