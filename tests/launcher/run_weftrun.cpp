#include "tests/launcher/run_weftrun.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "launcher/environment.h"

namespace weft::launcher {
namespace {

constexpr std::chrono::seconds kPatience{60};

std::array<base::UniqueFd, 2> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe");
  }
  return {base::UniqueFd(ends[0]), base::UniqueFd(ends[1])};
}

std::vector<std::string> clean_environment(
    const WeftrunProcess::Variables& variables) {
  std::vector<std::string> environment;
  for (const auto& entry : current_environment()) {
    const bool launchers =
        entry.starts_with("PET_") || entry.starts_with("WEFT_") ||
        entry.starts_with("TORCH") || entry.starts_with("OMP_");
    if (!launchers) {
      environment.push_back(entry);
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

bool append_from(base::UniqueFd& fd, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t size = read(fd.get(), buffer.data(), buffer.size());
  if (size <= 0) {
    fd.reset();
    return false;
  }
  text.append(buffer.data(), static_cast<size_t>(size));
  return true;
}

} // namespace

WeftrunProcess::WeftrunProcess(
    const std::vector<std::string>& arguments,
    const Variables& variables) {
  auto [input_read, input_write] = make_pipe();
  auto [output_read, output_write] = make_pipe();
  auto [error_read, error_write] = make_pipe();
  std::vector<std::string> words{WEFT_WEFTRUN};
  words.insert(words.end(), arguments.begin(), arguments.end());
  auto environment = clean_environment(variables);
  const auto argv = pointers(words);
  const auto envp = pointers(environment);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(input_read.get(), 0);
    dup2(output_write.get(), 1);
    dup2(error_write.get(), 2);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  input_ = std::move(input_write);
  output_ = std::move(output_read);
  error_ = std::move(error_read);
}

WeftrunProcess::~WeftrunProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

void WeftrunProcess::send(int signal) const {
  kill(pid_, signal);
}

bool WeftrunProcess::read_some() {
  std::array<pollfd, 2> polled{
      pollfd{.fd = output_.get(), .events = POLLIN, .revents = 0},
      pollfd{.fd = error_.get(), .events = POLLIN, .revents = 0}};
  if (!output_ && !error_) {
    return false;
  }
  const auto patience = std::chrono::milliseconds(kPatience).count();
  if (poll(polled.data(), polled.size(), static_cast<int>(patience)) == 0) {
    throw std::runtime_error(
        "weftrun is silent. Output: " + output_text_ +
        "\nError: " + error_text_);
  }
  if (polled[0].revents != 0) {
    append_from(output_, output_text_);
  }
  if (polled[1].revents != 0) {
    append_from(error_, error_text_);
  }
  return true;
}

void WeftrunProcess::wait_for(std::string_view text, int times) {
  while (count(output_text_, text) < times &&
         count(error_text_, text) < times) {
    if (!read_some()) {
      throw std::runtime_error(
          "no '" + std::string(text) + "' in output: " + output_text_ +
          "\nnor in error: " + error_text_);
    }
  }
}

int WeftrunProcess::wait() {
  while (read_some()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string WeftrunProcess::last_error_line() const {
  const auto lines = lines_of(error_text_);
  return lines.empty() ? "" : lines.back();
}

std::vector<std::string>
shell(int nproc, const std::string& script, std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--nproc-per-node", std::to_string(nproc)});
  flags.insert(flags.end(), {"--", "/bin/sh", "-c", script});
  return flags;
}

int count(std::string_view text, std::string_view part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos;
       at += part.size()) {
    ++found;
  }
  return found;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

bool gone_within(pid_t pid, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  do {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(stat, text);
    const size_t name_end = text.rfind(')');
    if (text.empty() || text.substr(name_end + 1, 2) == " Z") {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

} // namespace weft::launcher
