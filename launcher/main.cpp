#include <cstdio>
#include <exception>
#include <string>

#include <time.h>

#include "base/process.h"
#include "launcher/launch.h"
#include "launcher/options/options.h"
#include "launcher/process/outcome.h"

namespace {

/// Returns the seconds since the epoch, with microseconds.
std::string now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  char text[40];
  std::snprintf(
      text,
      sizeof(text),
      "%lld.%06ld",
      static_cast<long long>(time.tv_sec),
      time.tv_nsec / 1000);
  return text;
}

int fail(const char* sentence) {
  std::fprintf(
      stderr, "%s\n", weft::launcher::failure_line(2, sentence).c_str());
  return 2;
}

} // namespace

int main(int argc, char** argv) {
  const std::string start_time = now();
  weft::base::prepare_process();
  if (weft::base::is_working_directory_removed()) {
    return fail(weft::base::kWorkingDirectoryRemoved);
  }
  try {
    const auto parsed = weft::launcher::parse_command_line(argc, argv);
    if (!parsed.options) {
      std::fputs(parsed.text.c_str(), stdout);
      return 0;
    }
    return weft::launcher::launch(*parsed.options, start_time);
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
