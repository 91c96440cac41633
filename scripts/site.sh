#!/usr/bin/env bash
# Makes the documentation's site in build-site/html: docs/, the README as home
# page, and the API reference. Fails at a warning: a link without a target, a
# page that is not in the navigation, a public symbol without a comment. The
# site needs no network and may be opened as files.
step=site
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

packages=(mkdocs==1.6.1 mkdocs-material==9.8.2 mkdoxy==1.2.8)

install_mkdocs() {
  local stamp=.venv-site/weft.stamp
  [[ -f $stamp && $(<"$stamp") == "${packages[*]}" ]] && return
  say "installing ${packages[*]} in .venv-site"
  rm -rf .venv-site
  "${PYTHON:-python3}" -m venv .venv-site || die 2 "install python3-venv"
  .venv-site/bin/pip -q --disable-pip-version-check install "${packages[@]}" ||
    die 1 "pip failed; run make site again"
  echo "${packages[*]}" >"$stamp"
}

# Whatever a page loads must be part of the site.
check_offline() {
  local hits
  hits=$(grep -rnoE '<(script|img|link rel="stylesheet")[^>]*(src|href)="https?://[^"]*"' \
           build-site/html --include='*.html' | head -n 5 || true)
  [[ -z $hits ]] || die 1 "a page loads something from elsewhere:"$'\n'"$hits"
}

command -v doxygen >/dev/null || scripts/setup.sh tests
command -v doxygen >/dev/null || die 2 "doxygen is not installed"
install_mkdocs
rm -rf build-site
status=0
scripts/lint.sh reference || status=$?
((status == 0 || status == 77)) || die 1 "the reference is not complete"
NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs -q build --strict \
  -f site/mkdocs.yml || die 1 "mkdocs has warnings (site/mkdocs.yml)"
check_offline
say "$(find build-site/html -name '*.html' | wc -l) pages:" \
  "build-site/html/index.html (${SECONDS} s)"
