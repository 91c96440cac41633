#!/usr/bin/env bash
# scripts/build.sh [TARGET...]: configures build/ (preset release) where that is
# due and builds the targets, or everything.
#
#   JOBS=N             compile jobs at once (default: by cores and memory)
#   WEFT_CUDA=on|off   libweft_cuda.so has to be built, or must not be (default:
#                      where CUDA and NCCL are found)
step=build
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cmake=$(tool cmake)
libtorch=$(libtorch_dir)
export LIBTORCH=${LIBTORCH:+$libtorch}

cached() {
  sed -n "s/^$1:[A-Z]*=//p" build/CMakeCache.txt
}

# Says what a build with g++ costs where nobody asked for g++.
cost() {
  [[ -n ${CXX:-} || $1 != */g++ ]] || echo "; clang ${CLANG_VERSIONS[-1]} or" \
    "newer, which is not installed, would take half the time"
}

# Ninja configures again by itself when a CMake file changed. What it cannot
# see: another libtorch or compiler, or that the whole folder was moved.
configure() {
  local fresh=() cuda=${WEFT_CUDA:-auto} cxx
  cxx=$(compiler)
  [[ -n $cxx ]] || die 2 "there is no C++ compiler: run make setup, or set CXX"
  if [[ -f build/build.ninja && -f build/CMakeCache.txt ]]; then
    if [[ $(cached CMAKE_HOME_DIRECTORY) == "$PWD" &&
          $(cached Libtorch_ROOT_DIR) == "$libtorch" &&
          $(cached CMAKE_CXX_COMPILER) == "$cxx" ]]; then
      [[ $(cached WEFT_CUDA) == "$cuda" ]] && return
    else
      fresh=(--fresh)
    fi
  fi
  say "configuring"
  mkdir -p build
  CXX=${CXX:-$cxx} "$cmake" "${fresh[@]}" --preset release \
    "-DWEFT_CUDA=$cuda" >build/configure.log 2>&1 || {
    rm -f build/build.ninja
    cat build/configure.log >&2
    die 2 "configuring failed"
  }
  say "$(sed -n 's/^-- \(compiler: .*\)/\1/p' build/configure.log)$(cost "$cxx")"
}

configure
targets=()
(($#)) && targets=(--target "$@")
export NINJA_STATUS="build: [%f/%t] "
# Paths below the root are the same to ccache in every clone.
export CCACHE_BASEDIR=$PWD
# With tcmalloc the compiler takes a tenth less time.
allocator=$(cached TCMALLOC_MINIMAL_LIBRARY)
[[ ! -f $allocator ]] || export LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$allocator
"$cmake" --build build --parallel "${JOBS:-$(jobs)}" "${targets[@]}" ||
  die 1 "failed"
say "ready (${SECONDS} s)"
