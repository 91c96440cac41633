#!/bin/sh
# bin/weft and bin/weftrun of a package: starts the program of this name with the
# libtorch in LIBTORCH, or in the folder torch/ beside bin/. scripts/package.sh
# writes the oldest glibc for @GLIBC@.
set -e
program=$(basename "$0")
root=$(dirname "$(dirname "$(readlink -f "$0")")")
torch=${LIBTORCH:-$root/torch}
built=$(cut -d. -f1,2 "$root/weft/share/weft/libtorch_version")

refuse() {
  printf '%s: %s\n' "$program" "$*" >&2
  exit 2
}

number() {
  sed -n "s/^#define TORCH_VERSION_$1 //p" \
    "$torch/include/torch/headeronly/version.h" 2>/dev/null || true
}

glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)
older=$(printf '%s\n@GLIBC@\n' "${glibc:-@GLIBC@}" | sort -V | head -n 1)
[ "$older" = @GLIBC@ ] || refuse "glibc @GLIBC@ or newer is needed, and this host" \
  "has glibc $glibc"
[ -e "$torch/lib/libtorch_cpu.so" ] || refuse "no libtorch is in $torch." \
  "Set LIBTORCH to the folder torch of the Python package torch $built, or link" \
  "it: ln -s FOLDER $root/torch"
found=$(number MAJOR).$(number MINOR)
[ "$found" != . ] || found="of an unknown version"
[ "$found" = "$built" ] || refuse "this weft was built with libtorch $built, and" \
  "$torch is libtorch $found"
LD_LIBRARY_PATH=$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$root/weft/bin/$program" "$@"
