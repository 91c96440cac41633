#!/usr/bin/env bash
# scripts/run_suite.sh BINARY FILE.tests: runs the tests of one GoogleTest binary
# that FILE lists, in one process, and accounts for each of them. An entry of
# ctest calls it (cmake/discover_suites.cmake).
#
# A test that ends the process, or takes longer than WEFT_TEST_LIMIT seconds
# (120), has failed; the tests after it then run in a new process. FILE.outcomes
# gets a line for each test: ok, skipped or failed, and its name.
#
#   TEST=PATTERN          only the tests whose names match
#   WEFT_TEST_AGAIN=on    only the tests that failed last time
#
# Exit 0: all passed. 1: some failed. 77: all were skipped.
set -uo pipefail

binary=$1
base=${2%.tests}
outcomes=$base.outcomes
log=$base.log
limit=${WEFT_TEST_LIMIT:-120}
mapfile -t pending <"$2"
child=

# keep PREDICATE: leaves those pending tests for which it succeeds.
keep() {
  local test kept=()
  for test in "${pending[@]}"; do
    "$1" "$test" && kept+=("$test")
  done
  pending=("${kept[@]}")
}
# shellcheck disable=SC2053 # a pattern is what is wanted
is_asked_for() { [[ $1 == $TEST ]]; }
has_failed() { grep -qxF "failed $1" "$outcomes" 2>/dev/null; }

end_child() {
  [[ -z $child ]] || kill -KILL -- "-$child" 2>/dev/null
  exit 1
}
trap end_child INT TERM HUP

# Ends the child if it begins no other test within the limit.
watch() {
  local begun=-1 now since=$SECONDS
  while sleep "$((limit < 40 ? 1 : limit / 40))"; do
    now=$(grep -c '\[ RUN      \]' "$log")
    ((now == begun)) || { begun=$now since=$SECONDS; }
    if ((SECONDS - since >= limit)); then
      : >"$base.hangs"
      kill -ABRT "$1" # its crash handler may say where it hangs
      sleep 5
      kill -KILL -- "-$1"
      return
    fi
  done 2>/dev/null
}

# Runs what is pending in one process; its exit status.
run_pending() {
  local filter watcher status
  filter=$(IFS=: && echo "${pending[*]}")
  rm -f "$base.hangs"
  : >"$log"
  set -m # a process group of its own
  "$binary" --gtest_color=no --gtest_filter="$filter" \
    </dev/null >"$log" 2>&1 &
  child=$!
  watch "$child" &
  watcher=$!
  set +m
  wait "$child"
  status=$?
  kill -KILL -- "-$watcher" 2>/dev/null
  wait "$watcher" 2>/dev/null
  child=
  cat "$log"
  return "$status"
}

# Prints the outcome of each test in the log, and `begun` for one without.
read_outcomes() {
  awk '
    /\[==========\] [0-9]+ tests? from .* ran\./ {exit}
    match($0, /\[ RUN      \] [^ ,]+/) {
      begun = substr($0, RSTART + 13, RLENGTH - 13)
    }
    match($0, /\[ +(OK|FAILED|SKIPPED) +\] [^ ,]+/) {
      split(substr($0, RSTART, RLENGTH), words, /[][ ]+/)
      if (words[3] == begun) {
        print (words[2] == "OK" ? "ok" : tolower(words[2])), begun
        begun = ""
      }
    }
    END {if (begun != "") print "begun", begun}' "$log"
}

# why STATUS: in words.
why() {
  if [[ -e $base.hangs ]]; then
    echo "it took longer than $limit s"
  elif (($1 > 128)); then
    echo "the process was ended by SIG$(kill -l "$(($1 - 128))")"
  else
    echo "the process ended with exit code $1"
  fi
}

fail() {
  echo "failed $1" >>"$outcomes.new"
  echo "FAILED: $1: $2"
}

[[ -z ${TEST:-} ]] || keep is_asked_for
# A run that was killed has left no outcomes: then all tests run again.
if [[ ${WEFT_TEST_AGAIN:-} == on && -e $outcomes ]]; then
  keep has_failed
fi
count=${#pending[@]}
rm -f "$outcomes"
: >"$outcomes.new"
while ((${#pending[@]})); do
  run_pending
  status=$?
  before=${#pending[@]}
  declare -A seen=()
  failed=0
  while read -r outcome test; do
    seen[$test]=$outcome
    case $outcome in
      begun) fail "$test" "$(why "$status")" && failed=1 ;;
      failed) fail "$test" "see above" && failed=1 ;;
      *) echo "$outcome $test" >>"$outcomes.new" ;;
    esac
  done < <(read_outcomes)
  is_left() { [[ -z ${seen[$1]:-} ]]; }
  last=${pending[-1]}
  keep is_left
  if ((${#pending[@]} == before)); then
    for test in "${pending[@]}"; do
      fail "$test" "it did not begin: $(why "$status")"
    done
    break
  elif ((status != 0 && failed == 0 && ${#pending[@]} == 0)); then
    sed -i "/ ${last//\//\\/}\$/d" "$outcomes.new"
    fail "$last" "after the tests $(why "$status")"
  fi
done
rm -f "$base.hangs"
mv "$outcomes.new" "$outcomes"

failures=$(grep -c '^failed ' "$outcomes")
skips=$(grep -c '^skipped ' "$outcomes")
# Whether the entry computes or waits (weft_add_test) is seen in its times.
times >"$base.times"
{ read -r _ && read -r user system; } <"$base.times"
echo "${base##*/}: $count tests, $failures failed, $skips skipped;" \
  "$SECONDS s, of these $user user and $system system"
((failures == 0)) || exit 1
((skips == 0 || skips < count)) || exit 77
