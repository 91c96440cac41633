#include "mesh/error/resource_limits.h"

#include <cerrno>

#include <sys/resource.h>

#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

// Measured in runs of two ranks, which fail at their first save if the limit is
// 32.
constexpr rlim_t kMinOpenFiles = 64;

/// Returns the limit as text, or "" if there is none. Sizes are in KiB, because
/// shells differ in the unit of ulimit.
std::string
limit_text(__rlimit_resource resource, const char* option, bool is_of_memory) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  return detail::concat(
      " (ulimit ",
      option,
      " is ",
      is_of_memory ? limit.rlim_cur / 1024 : limit.rlim_cur,
      is_of_memory ? " KiB)" : ")");
}

} // namespace

std::string limit_behind(int error) {
  switch (error) {
    case EMFILE:
      return limit_text(RLIMIT_NOFILE, "-n", /*is_of_memory=*/false);
    case EFBIG:
      return limit_text(RLIMIT_FSIZE, "-f", /*is_of_memory=*/true);
    case ENOMEM:
      return limit_text(RLIMIT_AS, "-v", /*is_of_memory=*/true);
    default:
      return "";
  }
}

void check_open_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kMinOpenFiles) {
    throw_error<UsageError>(detail::concat(
        "[world] the limit of open files (ulimit -n) is ",
        limit.rlim_cur,
        ", and a rank needs ",
        kMinOpenFiles,
        " or more. Raise the limit before starting the run."));
  }
}

} // namespace weft::mesh
