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

# Ninja configures again by itself when a CMake file changed. What it cannot
# see: another libtorch, or that the whole folder was moved.
configure() {
  local fresh=() cuda=${WEFT_CUDA:-auto}
  if [[ -f build/build.ninja && -f build/CMakeCache.txt ]]; then
    if [[ $(cached CMAKE_HOME_DIRECTORY) == "$PWD" &&
          $(cached Libtorch_ROOT_DIR) == "$libtorch" ]]; then
      [[ $(cached WEFT_CUDA) == "$cuda" ]] && return
    else
      fresh=(--fresh)
    fi
  fi
  say "configuring"
  mkdir -p build
  "$cmake" "${fresh[@]}" --preset release "-DWEFT_CUDA=$cuda" >build/configure.log 2>&1 || {
    local code=$?
    rm -f build/build.ninja
    cat build/configure.log >&2
    die "$code" "configuring failed"
  }
}

configure
targets=()
(($#)) && targets=(--target "$@")
export NINJA_STATUS="build: [%f/%t] "
# Paths below the root are the same to ccache in every clone.
export CCACHE_BASEDIR=$PWD
"$cmake" --build build --parallel "${JOBS:-$(jobs)}" "${targets[@]}" ||
  die 1 "failed"
say "ready (${SECONDS} s)"
