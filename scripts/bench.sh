#!/usr/bin/env bash
# Measures Weft against PyTorch, in turn on this machine, and prints the table
# of docs/benchmarks.md. Needs `make peer` and a quiet machine.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv-peer/bin/python bench/compare.py "$@"
build/bin/weft bench dispatch --json
