#!/usr/bin/env bash
# Measures Weft against PyTorch, in turn on this machine, and writes the tables
# and pictures of docs/benchmarks.md. Needs `make peer` and a quiet machine;
# about 25 minutes. --only ROW,... measures some rows, --resume goes on, --help
# says more.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv-peer/bin/python bench/benchmarks.py "$@"
