#!/usr/bin/env bash
# scripts/torch_versions.sh [VERSION...]: builds HEAD and runs all its tests with
# other libtorch versions than the one that `make test` uses (default: the oldest
# that is supported). It takes some 25 minutes a version, so it is for a
# schedule, not for each change. Each version has a clone in build-torch/.
#
#   CTEST_ARGS='-L ddp'   arguments for ctest
step=torch
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

versions=("${@:-$OLDEST_TORCH_VERSION}")
default=$(LIBTORCH='' libtorch_dir)
[[ -n $default ]] || die 2 "there is no .venv: run make setup"

# Prints the folder of the version's libtorch. Its CUDA libraries are those of
# .venv.
install_torch() {
  local folder=$PWD/build-torch/site-$1
  if [[ ! -f $folder/stamp ]]; then
    say "installing torch $1 in $folder" >&2
    rm -rf "$folder"
    mkdir -p "$folder"
    .venv/bin/python -I -m pip -q --disable-pip-version-check install --no-deps \
      --target "$folder" "torch==$1" >&2 || die 1 "pip failed"
    ln -s "$(dirname "$default")/nvidia" "$folder/nvidia"
    touch "$folder/stamp"
  fi
  printf '%s\n' "$folder/torch"
}

failed=()
for version in "${versions[@]}"; do
  torch=$(install_torch "$version")
  clone=$PWD/build-torch/$version
  [[ -d $clone ]] || git clone -q . "$clone"
  git -C "$clone" fetch -q origin
  git -C "$clone" checkout -q "$(git rev-parse HEAD)"
  say "$version: $clone, log $clone/test.log"
  SECONDS=0
  if ! make -C "$clone" test "LIBTORCH=$torch" "ARGS=${CTEST_ARGS:-}" RETRY=on \
         >"$clone/test.log" 2>&1; then
    failed+=("$version")
    grep -E '^failed: |error: |FAILED' "$clone/test.log" | head -n 20 || true
  fi
  say "$version: $(grep -E '^test: [0-9]+ tests' "$clone/test.log" |
                     tail -n 1 || echo "the tests did not run") (${SECONDS} s)"
done
((${#failed[@]} == 0)) || die 1 "failed: ${failed[*]}"
