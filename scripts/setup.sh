#!/usr/bin/env bash
# scripts/setup.sh [tests]
# Installs what a build needs and is not there yet: Debian packages, and
# libtorch from its wheel in .venv. Run again after an interruption, it repairs
# what was left half done; with nothing to do it takes a fraction of a second.
# With `tests`, instead, the programs that tests run if they are there; what
# cannot be installed is said and is no failure.
#
#   WEFT_CUDA=on|off   the wheel with all CUDA libraries, or without (default:
#                      with, where an NVIDIA GPU is present)
#   CXX=PROGRAM        compile with it and install no compiler (default: clang,
#                      where the distribution has a new one, else g++)
#   LIBTORCH=DIR       use this libtorch (include/ and lib/) and make no .venv
#   WEFT_PACKAGES=off  leave Debian packages alone
step=setup
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Two builds started together must not install into one .venv.
exec 9<scripts/setup.sh
flock 9

cmake_is_new_enough() {
  local cmake version
  cmake=$(tool cmake)
  version=$("$cmake" --version 2>/dev/null | awk 'NR == 1 {print $3}') || return 1
  dpkg --compare-versions "${version:-0}" ge "$CMAKE_MINIMUM"
}

# A python3 that can make an environment with pip.
find_python() {
  local python
  for python in "${PYTHON:-}" python3 /usr/bin/python3; do
    if [[ -n $python ]] && "$python" -c 'import ensurepip, sys, venv
sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      printf '%s\n' "$python"
      return
    fi
  done
  return 1
}

# Prints the version of a package that the distribution has, or nothing.
candidate() {
  apt-cache policy "$1" 2>/dev/null |
    awk '$1 == "Candidate:" && $2 != "(none)" {print $2}'
}

# Prints the packages of the newest clang that the distribution has, or nothing.
clang_packages() {
  local version
  for version in "${CLANG_VERSIONS[@]}"; do
    if [[ -n $(candidate "clang-$version") ]]; then
      printf '%s\n' "clang-$version" "lld-$version"
      return
    fi
  done
}

# Prints what a compiler takes: clang, or where there is none, g++.
compiler_packages() {
  local clang
  [[ -z ${CXX:-} && $(compiler) != *clang* ]] || return 0
  clang=$(clang_packages)
  if [[ -n $clang ]]; then
    printf '%s\n' "$clang"
  else
    command -v g++ >/dev/null || echo g++
  fi
}

# Prints the package of the allocator for `weft`, or nothing where it is
# installed or the distribution has none.
allocator_packages() {
  local package libraries
  libraries=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null) || true
  [[ $libraries != *libtcmalloc_minimal.so.4* ]] || return 0
  for package in libtcmalloc-minimal4 libtcmalloc-minimal4t64; do
    if [[ -n $(candidate "$package") ]]; then
      echo "$package"
      return
    fi
  done
}

# Prints the packages that are missing.
missing_packages() {
  compiler_packages
  allocator_packages
  command -v ninja >/dev/null || echo ninja-build
  command -v ccache >/dev/null || echo ccache
  cmake_is_new_enough || echo cmake
  if [[ -z ${LIBTORCH:-} && ! -x .venv/bin/python ]]; then
    find_python >/dev/null || echo python3-venv
  fi
  not_installed "${DEBIAN_LIBRARIES[@]}"
}

# Prints those of the packages that are not installed.
not_installed() {
  local installed package
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" \
                2>/dev/null || true)
  for package in "$@"; do
    grep -qx "$package installed" <<<"$installed" || echo "$package"
  done
}

# Whether Debian's cmake would do; unknown (no package lists yet) counts as yes.
apt_cmake_is_new_enough() {
  local version
  version=$(candidate cmake)
  [[ -z $version ]] || dpkg --compare-versions "$version" ge "$CMAKE_MINIMUM"
}

# Leaves cmake to pip where the distribution's is too old.
without_old_cmake() {
  local package
  for package in "$@"; do
    if [[ $package == cmake ]] && ! apt_cmake_is_new_enough; then
      continue
    fi
    echo "$package"
  done
}

# Of the packages on standard input those that must be there: g++ does, too, and
# the C library's allocator.
required_ones() {
  local optional='^libtcmalloc-'
  ! command -v g++ >/dev/null || optional='^(clang|lld|libtcmalloc)-'
  grep -vE "$optional" || true
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: clang or g++, cmake >= $CMAKE_MINIMUM, ninja, yaml-cpp," \
      "CLI11, nlohmann-json, fmt, xxHash, OpenSSL, zlib, SentencePiece," \
      "PCRE2 and GoogleTest are expected to be installed; tcmalloc is taken if" \
      "it is there"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0

  local as_root=()
  if ((EUID != 0)); then
    if sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    else
      mapfile -t missing < <(without_old_cmake "${missing[@]}" |
                               required_ones)
      ((${#missing[@]})) || return 0
      say "Debian packages are missing. Run this, then the same make again:" >&2
      printf '\n  sudo sh -c "apt-get update && apt-get install -y %s"\n\n' \
        "${missing[*]}" >&2
      exit 2
    fi
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get
             -qq -o DPkg::Lock::Timeout=300)
  say "updating package lists"
  "${apt[@]}" update || die 1 "apt-get update failed"
  mapfile -t missing < <(without_old_cmake $(missing_packages))
  ((${#missing[@]})) || return 0
  say "installing ${missing[*]}"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null ||
    die 1 "apt-get install failed"
}

# Of their services only munge's starts by itself (a Unix socket); Slurm's wait
# for /etc/slurm/slurm.conf. Tests start their own, elsewhere.
install_test_packages() {
  command -v dpkg-query >/dev/null || return 0
  local missing
  mapfile -t missing < <(not_installed "${TEST_PACKAGES[@]}")
  ((${#missing[@]})) || return 0
  local as_root=()
  ((EUID == 0)) || as_root=(sudo -n)
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get
             -qq -o DPkg::Lock::Timeout=300)
  say "installing ${missing[*]} for tests"
  "${apt[@]}" update >/dev/null 2>&1 || true
  local package without=()
  for package in "${missing[@]}"; do
    "${apt[@]}" install -y --no-install-recommends "$package" \
      >/dev/null 2>&1 || without+=("$package")
  done
  ((${#without[@]} == 0)) || say "not installed: ${without[*]}. Tests that" \
    "want them are skipped; for them: sudo apt-get install ${without[*]}"
}

want_cuda() {
  case ${WEFT_CUDA:-auto} in
    on) return 0 ;;
    off) return 1 ;;
    auto) [[ -e /dev/nvidia0 ]] || nvidia-smi -L >/dev/null 2>&1 ;;
    *) die 2 "WEFT_CUDA=$WEFT_CUDA: on or off is expected" ;;
  esac
}

pip_install() {
  local quiet=(-q)
  [[ -t 1 ]] && quiet=()
  .venv/bin/python -I -m pip --disable-pip-version-check install \
    "${quiet[@]}" "$@" || die 1 "pip failed. Run make again to go on, or name a" \
    "libtorch that is here already with LIBTORCH=DIR."
}

# Whether the packages in .venv are whole: versions, files and their sizes.
venv_is_whole() {
  [[ -x .venv/bin/python ]] && .venv/bin/python -I - "$@" <<'PYTHON'
import importlib.metadata
import sys

for requirement in sys.argv[1:]:
    name, version = requirement.split("==")
    try:
        package = importlib.metadata.distribution(name)
        ok = package.version.split("+")[0] == version and all(
            file.size is None or file.locate().stat().st_size == file.size
            for file in package.files or [None]
        )
    except Exception:
        ok = False
    if not ok:
        sys.exit(1)
PYTHON
}

# libtorch_cpu.so must find libcudart and libcupti, or no program starts.
check_loads() {
  local library missing
  library=$(libtorch_dir)/lib/libtorch_cpu.so
  [[ -f $library ]] || die 1 "$library is missing after the installation"
  missing=$(ldd "$library" | awk '/not found/ {print $1}' | xargs)
  [[ -z $missing ]] || die 1 "$library needs $missing, which the loader does" \
    "not find. Remove .venv and run make again."
}

install_libtorch() {
  local packages=("torch==$TORCH_VERSION"
                  "nvidia-cuda-runtime==$CUDA_RUNTIME_VERSION"
                  "nvidia-cuda-cupti==$CUPTI_VERSION")
  local kind=cpu
  if want_cuda; then
    kind=cuda
    packages=("torch==$TORCH_VERSION")
  fi
  # Written last, so it is there only when the installation ended well. An
  # environment with CUDA does for the CPU too.
  local stamp=.venv/weft.stamp
  local line="torch==$TORCH_VERSION $kind"
  if [[ -f $stamp ]]; then
    case $(<"$stamp") in
      "$line" | "torch==$TORCH_VERSION cuda")
        [[ -f $(libtorch_dir)/lib/libtorch_cpu.so ]] && return ;;
    esac
  elif [[ $kind == cpu ]] && venv_is_whole "${packages[@]}"; then
    check_loads
    echo "$line" >"$stamp"
    return
  fi

  local python
  python=$(find_python) || die 2 "no python3 (3.10 or newer) that can make" \
    "environments: install python3-venv, or set PYTHON"
  rm -f "$stamp"
  rm -rf .venv
  "$python" -m venv .venv || die 1 "python3 -m venv failed"
  if [[ $kind == cuda ]]; then
    say "installing libtorch $TORCH_VERSION with CUDA (5 GB unless cached)"
    pip_install "${packages[@]}"
  else
    say "installing libtorch $TORCH_VERSION for the CPU (1.7 GB unless cached)"
    pip_install --no-deps "${packages[@]}"
  fi
  check_loads
  echo "$line" >"$stamp"
}

install_cmake() {
  cmake_is_new_enough && return
  [[ -x .venv/bin/python ]] || die 2 "cmake >= $CMAKE_MINIMUM is needed"
  say "installing cmake in .venv (the system's is older than $CMAKE_MINIMUM)"
  pip_install "cmake>=$CMAKE_MINIMUM"
}

if [[ ${1:-} == tests ]]; then
  [[ ${WEFT_PACKAGES:-on} == off ]] || install_test_packages
  exit
fi
[[ ${WEFT_PACKAGES:-on} == off ]] || install_packages
if [[ -n ${LIBTORCH:-} ]]; then
  if [[ ! -f $LIBTORCH/include/torch/csrc/api/include/torch/torch.h ||
        ! -f $LIBTORCH/lib/libtorch_cpu.so ]]; then
    die 2 "LIBTORCH=$LIBTORCH: no include/torch/csrc/api/include/torch/torch.h" \
      "and lib/libtorch_cpu.so there"
  fi
else
  install_libtorch
fi
! command -v dpkg >/dev/null || install_cmake
say "libtorch in $(libtorch_dir) (${SECONDS} s)"
