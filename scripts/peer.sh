#!/usr/bin/env bash
# Makes .venv-peer: PyTorch with Python, to measure and to check against.
# Neither the build nor the tests need it.
step=peer
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

packages=("torch==$TORCH_VERSION" matplotlib==3.11.2 numpy==2.4.6
          safetensors==0.8.0 transformers==5.23.0)
stamp=.venv-peer/weft.stamp
if [[ -f $stamp && $(<"$stamp") == "${packages[*]}" ]]; then
  say "ready"
  exit 0
fi
# Without a stamp an installation broke off, or there was none.
[[ -f $stamp ]] || rm -rf .venv-peer
rm -f "$stamp"
say "installing ${packages[*]} in .venv-peer (5 GB unless cached)"
"${PYTHON:-python3}" -m venv .venv-peer
quiet=(-q)
[[ -t 1 ]] && quiet=()
.venv-peer/bin/python -I -m pip --disable-pip-version-check install \
  "${quiet[@]}" "${packages[@]}" || die 1 "pip failed; run make peer again"
echo "${packages[*]}" >"$stamp"
say "ready (${SECONDS} s)"
