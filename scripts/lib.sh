# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by the other scripts: the repository's root as working directory,
# versions, messages. `step` names the step in every message.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Versions that are known to work together. The CUDA libraries are what
# libtorch_cpu.so of the wheel cannot load without, also where no GPU is.
TORCH_VERSION=2.15.0
OLDEST_TORCH_VERSION=2.11.0
CUDA_RUNTIME_VERSION=13.5.37
CUPTI_VERSION=13.5.25
CMAKE_MINIMUM=3.25
# Newest first, but the one that is measured before those after it.
CLANG_VERSIONS=(19 21 20 18 17 16)
DEBIAN_LIBRARIES=(libcli11-dev libeigen3-dev libfmt-dev libgmock-dev
                  libgtest-dev libpcre2-dev libsentencepiece-dev libssl-dev
                  libxxhash-dev libyaml-cpp-dev nlohmann-json3-dev zlib1g-dev)
# What tests run beside Weft: faults in system calls, other launchers, two hosts
# on one, comments of public symbols, a tokenizer's training. A test whose program
# is missing is skipped by name.
TEST_PACKAGES=(doxygen iproute2 munge openmpi-bin procps sentencepiece
               slurm-client slurmctld slurmd strace)

say() {
  printf '%s: %s\n' "$step" "$*"
}

# die <exit code> <message...>
die() {
  local code=$1
  shift
  printf '%s: %s\n' "$step" "$*" >&2
  exit "$code"
}

# expect_in OUTPUT TEXT
expect_in() {
  grep -qF -- "$2" <<<"$1" || die 1 "expected \"$2\" in: $1"
}

# The program in .venv if it is there (a newer cmake than the system's), else
# the one in PATH.
tool() {
  if [[ -x .venv/bin/$1 ]]; then
    printf '%s\n' "$PWD/.venv/bin/$1"
  else
    printf '%s\n' "$1"
  fi
}

# The folder with libtorch's include/ and lib/, or nothing.
libtorch_dir() {
  if [[ -n ${LIBTORCH:-} ]]; then
    (cd "$LIBTORCH" 2>/dev/null && pwd) || true
    return
  fi
  local candidate
  for candidate in .venv/lib/python3*/site-packages/torch; do
    if [[ -d $candidate ]]; then
      printf '%s\n' "$PWD/$candidate"
      return
    fi
  done
}

# Prints the C++ compiler: CXX where it is set, else clang, which compiles Weft
# in half of g++'s time, else g++, or nothing.
compiler() {
  local version
  if [[ -n ${CXX:-} ]]; then
    command -v "${CXX%% *}" || die 2 "CXX=$CXX: there is no such program"
    return
  fi
  for version in "${CLANG_VERSIONS[@]}"; do
    command -v "clang++-$version" && return
  done
  command -v g++ || true
}

# Compile jobs: one a core, but no more than memory has room for (1.5 GB each).
jobs() {
  local cores memory_mb limit
  cores=$(nproc)
  memory_mb=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [[ $limit != max ]] && ((limit / 1048576 < memory_mb)); then
    memory_mb=$((limit / 1048576))
  fi
  local by_memory=$((memory_mb / 1536))
  ((by_memory < 1)) && by_memory=1
  printf '%s\n' "$((by_memory < cores ? by_memory : cores))"
}
