#!/usr/bin/env bash
# Measures Weft against PyTorch, in turn on this machine, and prints the tables
# of docs/benchmarks.md. Needs `make peer` and a quiet machine.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv-peer/bin/python bench/compare.py "$@"
.venv-peer/bin/python bench/compare_checkpoint.py
build/bin/weft bench dispatch --json
