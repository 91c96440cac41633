#!/usr/bin/env bash
# scripts/test.sh [CTEST ARGUMENT...]: runs the tests of build/.
#
#   TEST_JOBS=N   tests at once (default: one a core)
step=test
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$(tool ctest)" --test-dir build --output-on-failure \
  --parallel "${TEST_JOBS:-$(nproc)}" "$@"
