#!/usr/bin/env bash
# scripts/lint.sh calls|notes|words|format|reference [--fix]: cheap checks of the house style.
# Exit 0: fine; 1: findings, one a line; 77: cannot be checked here.
step=lint
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

LIBRARIES=(base lighthouse mesh matmul dtensor cuda tp data_parallel ddp elastic fsdp
           checkpoint config tokenizers models data hf train inference cli testkit)
ALL=("${LIBRARIES[@]}" launcher bench tests)
found=0

# sources FOLDER...: C++ files below the folders that exist.
sources() {
  find "$@" -name '*.h' -o -name '*.cpp' -o -name '*.cu' 2>/dev/null | sort || true
}

# forbid WHAT PATTERN EXCEPT FOLDER...: no line outside comments matches the
# Perl pattern, except in files whose path matches EXCEPT.
forbid() {
  local what=$1 pattern=$2 except=$3
  shift 3
  local files hits hit
  mapfile -t files < <(sources "$@" | grep -vE "$except")
  ((${#files[@]})) || return 0
  hits=$(grep -nHP "$pattern" "${files[@]}" | grep -vE '^[^:]+:[0-9]+: *//' || true)
  [[ -n $hits ]] || return 0
  found=1
  while read -r hit; do
    echo "$hit    <- $what"
  done <<<"$hits"
}

check_calls() {
  local none='^$'
  forbid "raw collectives belong in mesh/" \
    '(->|\.)(_?(allreduce|allgather|alltoall)\w*|\w+_single|_reduce_scatter_base)\(' \
    '^mesh/' "${LIBRARIES[@]}"
  forbid "c10d belongs in mesh/, its stores in elastic/ and testkit/ too, its NCCL in cuda/" \
    '#include <torch/csrc/distributed/c10d/' \
    '^((mesh|cuda|elastic)/|testkit/rank_store\.h)' "${LIBRARIES[@]}"
  forbid "read the environment in mesh/bootstrap/env.cpp" \
    '\b(secure_)?getenv\(' '^mesh/bootstrap/env\.cpp' "${LIBRARIES[@]}"
  forbid "ranks may be threads of one process: no thread_local" \
    '\bthread_local\b' "$none" "${LIBRARIES[@]}"
  forbid "ranks may be threads of one process: no mutable static" \
    '^\s*(inline )?static (?!const\b|constexpr\b|inline\b|std::once_flag)(?!.*\boperator)[^()]*(;|=|\{)' \
    "$none" "${LIBRARIES[@]}"
  forbid "all threads share the default dtype: use options or Module::to" \
    '\bset_default_dtype\(' "$none" "${LIBRARIES[@]}"
  forbid "log with base::Logger" '\bf?(printf|puts|write)\((.*, )?stderr\b|^\s+stderr,$' \
    '^(base/log|cli/failure|cli/progress_bar|cli/tokenize|launcher/main)\.(cpp|h)$' \
    "${LIBRARIES[@]}" launcher
  forbid "include from the root, without .." '#include "\.\./' "$none" "${ALL[@]}"
  forbid "no using namespace outside a function" \
    '^using namespace' "$none" "${ALL[@]}"
  local header
  while read -r header; do
    grep -q '^#pragma once$' "$header" && continue
    found=1
    echo "$header: no #pragma once"
  done < <(sources "${ALL[@]}" | grep '\.h$')
}

# Every "See Note [X]" has its note, and only one: a comment line that holds
# "Note [X]" alone. A citation may be broken over two lines.
check_notes() {
  local files
  mapfile -t files < <(sources "${ALL[@]}")
  ((${#files[@]})) || return 0
  perl -0777 -ne '
    push @{$noted{$1}}, $ARGV while m{^\s*//+ *Note \[([^\]]+)\]\s*$}gm;
    s{\n\s*//+ ?}{ }g;
    $cited{$1} //= $ARGV while /\bNote\s+\[([^\]]+)\]/gi;
    END {
      for (sort keys %cited) {
        next if $noted{$_};
        print "$cited{$_}: See Note [$_]: there is no such note\n";
        $bad = 1;
      }
      for (sort keys %noted) {
        next if @{$noted{$_}} == 1;
        print "Note [$_] stands in @{$noted{$_}}\n";
        $bad = 1;
      }
      exit($bad ? 1 : 0);
    }' "${files[@]}" || found=1
}

# Versions of clang-format disagree, so one is pinned.
check_format() {
  local clang_format
  clang_format=$(command -v clang-format-14 || command -v clang-format || true)
  if [[ -z $clang_format ||
        $("$clang_format" --version) != *"version 14."* ]]; then
    say "SKIPPED: clang-format 14 is not installed"
    exit 77
  fi
  local files
  mapfile -t files < <(sources "${ALL[@]}")
  ((${#files[@]})) || return 0
  if [[ ${1:-} == --fix ]]; then
    "$clang_format" -i "${files[@]}"
    return
  fi
  local hits
  hits=$("$clang_format" --dry-run "${files[@]}" 2>&1 | grep 'warning:' || true)
  [[ -n $hits ]] || return 0
  found=1
  cut -d: -f1,2 <<<"$hits" | sort -u | sed 's/$/: not formatted (make format)/'
}

# The phrases of scripts/lint_words.txt are in no file.
check_words() {
  if ! command -v python3 >/dev/null; then
    say "SKIPPED: python3 is not installed"
    exit 77
  fi
  python3 scripts/lint_words.py || found=1
}

# Every symbol of the API reference has a comment. Doxygen's warnings depend on
# its version, so one is pinned.
check_reference() {
  if ! command -v doxygen >/dev/null || [[ $(doxygen --version) != 1.9.4* ]]; then
    say "SKIPPED: doxygen 1.9.4 is not installed"
    exit 77
  fi
  local folder python
  folder=$(mktemp -d)
  # The filter starts once for each header: a wrapper of python3 (pyenv) would
  # take most of the time.
  python=$(python3 -c 'import sys; print(sys.executable)')
  {
    cat site/Doxyfile
    echo "OUTPUT_DIRECTORY = $folder"
    echo "INPUT_FILTER = \"$python -S site/share_comments.py\""
  } | doxygen - || found=1
  # Without its filter Doxygen reads empty files and finds nothing to report.
  grep -rqs 'DeviceMesh' "$folder/xml" || {
    found=1
    echo "doxygen read nothing (site/share_comments.py)"
  }
  comm -13 <(grep -o '[a-z_]*/[a-z_/]*\.h' site/Doxyfile | sort -u) \
    <(grep -rhoE '#include <weft/[^>]*>' docs examples tests/outside |
        sed 's/.*<weft\///; s/>//' | sort -u) >"$folder/missing"
  [[ ! -s $folder/missing ]] || {
    found=1
    sed 's/$/: included by docs or examples, not in site\/Doxyfile/' \
      "$folder/missing"
  }
  rm -r "$folder"
}

case ${1:-} in
  calls) check_calls ;;
  notes) check_notes ;;
  words) check_words ;;
  format) check_format "${2:-}" ;;
  reference) check_reference ;;
  *) die 2 "usage: scripts/lint.sh calls|notes|words|format|reference [--fix]" ;;
esac
exit "$found"
