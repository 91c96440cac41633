#!/usr/bin/env bash
# scripts/test.sh [CTEST ARGUMENT...]: runs the tests of build/, a suite in one
# process, and ends with how many there were.
#
#   TEST=PATTERN   only the tests Suite.Name that match, in ctest's entries
#   TEST_JOBS=N    entries that compute at once (default: three for two cores);
#                  those that mostly wait count half (cmake/weft_test.cmake)
#   RETRY=on       runs what failed once more, alone; what passes then is printed
#                  as "flaky: NAME" and is no failure
step=test
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export TEST=${TEST:-}
folder=build/tests/outcomes
log=build/tests/ctest.log

# run_ctest [ARGUMENT...]: ctest's status; its output goes to the log as well.
run_ctest() {
  local jobs=${TEST_JOBS:-$((($(nproc) * 3 + 1) / 2))}
  ((jobs == 1)) || jobs=$((2 * jobs))
  "$(tool ctest)" --test-dir build --output-on-failure --parallel "$jobs" "$@" |
    tee "$log"
}

# Prints the entries with tests that TEST matches, as ctest's -R wants them.
entries_of_test() {
  local file entry test entries=()
  for file in "$folder"/*.tests; do
    while read -r test; do
      # shellcheck disable=SC2053 # a pattern is what is wanted
      if [[ $test == $TEST ]]; then
        entry=$(basename "$file" .tests)
        entries+=("${entry//[_.]/[\/_.]}")
        break
      fi
    done <"$file"
  done
  ((${#entries[@]})) || return 1
  (IFS='|' && echo "^(${entries[*]})\$")
}

# outcomes KIND: the tests that ended so, of those that ran now.
outcomes() {
  find "$folder" -name '*.outcomes' -newer build/tests/started \
    -exec sed -n "s/^$1 //p" {} +
}

# Entries of ctest that no GoogleTest binary stands behind count as one test.
# plain LINE-PATTERN: their names in ctest's log, of lines with the pattern.
plain() {
  local name
  sed -nE "s/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*$1.*/\1/p" "$log" |
    while read -r name; do
      [[ -e $folder/${name//\//_}.tests ]] || echo "$name"
    done
}

if [[ -n $TEST ]]; then
  "$(tool ctest)" --test-dir build -N >/dev/null # lists the tests
  pattern=$(entries_of_test) || die 2 "TEST=$TEST: no test has such a name." \
    "Names are in $folder/*.tests."
  set -- -R "$pattern" "$@"
fi
mkdir -p "$folder"
touch build/tests/started
status=0
run_ctest "$@" || status=$?

entries=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#' "$log") || true
count=$(($(outcomes '[a-z]*' | wc -l) + $(plain '' | wc -l)))
skips=$(($(outcomes skipped | wc -l) + $(plain '[*]Skipped' | wc -l)))
failed=$(outcomes failed; plain '[*](Failed|Timeout|Not Run|Exception)')
flaky=()
if [[ ${RETRY:-off} == on && -n $failed ]]; then
  say "once more, alone: $(xargs <<<"$failed")"
  status=0
  touch build/tests/started
  WEFT_TEST_AGAIN=on TEST_JOBS=1 run_ctest --rerun-failed || status=$?
  still=$(outcomes failed; plain '[*](Failed|Timeout|Not Run|Exception)')
  mapfile -t flaky < <(grep -vxF -- "$still" <<<"$failed")
  ((${#flaky[@]} == 0)) || printf 'flaky: %s\n' "${flaky[@]}"
  failed=$still
fi
[[ -z $failed ]] || printf 'failed: %s\n' $failed
line="$count tests in $entries ctest entries, $skips skipped"
((${#flaky[@]} == 0)) || line+=", ${#flaky[@]} flaky"
say "$line"
exit "$status"
