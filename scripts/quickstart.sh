#!/usr/bin/env bash
# scripts/quickstart.sh [key.path=value...]: trains recipes/quickstart.yaml.
#
#   NPROC=N        ranks (default 4, as the recipe's mesh of 2 x 2)
#   LIBTORCH=DIR   train on this libtorch's headers
step=quickstart
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

nproc_per_node=${NPROC:-4}
overrides=()
if [[ -n ${LIBTORCH:-} ]]; then
  overrides+=("data.paths=[\"$(libtorch_dir)/include\"]")
fi
if ((nproc_per_node != 4)); then
  overrides+=(mesh.dp=-1)
  ((nproc_per_node % 2)) && overrides+=(mesh.tp=1)
fi
command=(build/bin/weftrun --nproc-per-node "$nproc_per_node" --
         build/bin/weft train recipes/quickstart.yaml "${overrides[@]}" "$@")
say "$(printf '%q ' "${command[@]}")"
exec "${command[@]}"
