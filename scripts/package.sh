#!/usr/bin/env bash
# scripts/package.sh: makes dist/weft-*.tar.gz and dist/weft-*.deb of the wheel in
# dist/ and tries them. Both have everything but libtorch, which LIBTORCH or a
# link names (packaging/start.sh).
step=package
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

wheel=$(compgen -G 'dist/weft-*.whl') || die 2 "there is no wheel: run make wheel"
torch=$(libtorch_dir)
[[ -n $torch ]] || die 2 "there is no libtorch: run make setup"
work=build-package
# "manylinux_2_36" names the oldest glibc.
glibc=$(sed -E 's/.*manylinux_([0-9]+)_([0-9]+).*/\1.\2/' <<<"$wheel")

# make_tree FOLDER: the wheel without its Python files, and what starts programs.
make_tree() {
  mkdir -p "$1/bin"
  "${PYTHON:-python3}" -m zipfile -e "$wheel" "$1"
  rm -r "$1"/weft-*.dist-info "$1/weft/__init__.py"
  chmod +x "$1"/weft/bin/*
  local program
  for program in weft weftrun; do
    sed "s/@GLIBC@/$glibc/g" packaging/start.sh >"$1/bin/$program"
    chmod 755 "$1/bin/$program"
  done
  cp LICENSE "$1"
}

# pack GENERATOR TREE
pack() {
  WEFT_PACKAGE_TREE=$PWD/$2 WEFT_PACKAGE_OUT=$PWD/$work/out WEFT_GLIBC=$glibc \
    "$(tool cpack)" --config packaging/cpack.cmake -G "$1" \
    >"$work/cpack.log" 2>&1 || die 1 "$(tail -20 "$work/cpack.log")"
}

# expect TEXT COMMAND...: the command says the text.
expect() {
  local text=$1 output
  shift
  output=$("$@" 2>&1) || true
  expect_in "$output" "$text"
}

# Runs the programs in the folder, as they are after an installation there.
try_programs() {
  local folder=$1
  expect "no libtorch is in $folder/torch" "$folder/bin/weft" --help
  mkdir -p "$work/fake"
  printf '#!/bin/sh\necho glibc 2.31\n' >"$work/fake/getconf"
  chmod +x "$work/fake/getconf"
  expect "glibc $glibc or newer is needed, and this host has glibc 2.31" \
    env "PATH=$PWD/$work/fake:$PATH" "$folder/bin/weft" --help
  mkdir -p "$work/old/lib" "$work/old/include/torch/headeronly"
  mkdir -p "$work/older/lib"
  touch "$work/old/lib/libtorch_cpu.so" "$work/older/lib/libtorch_cpu.so"
  printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n' \
    >"$work/old/include/torch/headeronly/version.h"
  expect "is libtorch of an unknown version" \
    env "LIBTORCH=$PWD/$work/older" "$folder/bin/weft" --help
  expect "is libtorch 2.9" env "LIBTORCH=$PWD/$work/old" "$folder/bin/weftrun" --help
  expect "done: 20 steps" env "LIBTORCH=$torch" "$folder/bin/weft" quickstart \
    train.steps=20 "output_dir=$PWD/$work/run_$RANDOM"
  ln -s "$torch" "$folder/torch"
  expect "done: 20 steps" "$folder/bin/weft" quickstart train.steps=20 \
    "output_dir=$PWD/$work/run_$RANDOM"
  rm "$folder/torch"
}

rm -rf "$work" dist/weft-*.tar.gz dist/weft-*.deb
make_tree "$work/tar"
make_tree "$work/deb/opt/weft"
mkdir -p "$work/deb/usr/bin"
ln -s ../../opt/weft/bin/weft ../../opt/weft/bin/weftrun "$work/deb/usr/bin"
pack TGZ "$work/tar"
pack DEB "$work/deb"
mv "$work"/out/weft-*.tar.gz "$work"/out/weft-*.deb dist

say "trying the tarball"
mkdir "$work/some where"
tar -xzf dist/weft-*.tar.gz -C "$work/some where" --strip-components=1
try_programs "$PWD/$work/some where"
if ((EUID != 0)) || ! command -v dpkg >/dev/null || [[ -e /opt/weft ]]; then
  say "SKIPPED: the Debian package is tried as root, where /opt/weft is not there"
else
  say "trying the Debian package"
  trap 'rm -f /opt/weft/torch; dpkg -P weft >/dev/null 2>&1 || true' EXIT
  dpkg -i dist/weft-*.deb >"$work/dpkg.log" 2>&1 || die 1 "$(<"$work/dpkg.log")"
  try_programs /opt/weft
  expect "no libtorch is in /opt/weft/torch" /usr/bin/weft --help
  dpkg -P weft >/dev/null
  [[ ! -e /opt/weft && ! -e /usr/bin/weft ]] || die 1 "files were left behind"
fi
rm -rf "$work"
say "$(du -h dist/weft-*.tar.gz dist/weft-*.deb | awk '{print $2 " (" $1 ")"}' | xargs)"
