#!/usr/bin/env bash
# Puts the digit images that scikit-learn ships at .cache/digits.csv.gz: of its
# wheel, whichever version suits the Python here, that one file is kept.
step=digits
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

file=.cache/digits.csv.gz
# Of the text, not of the compressed file, which has its time in it.
sha256=6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8

sum_of() {
  gzip -dc "$1" | sha256sum | cut -d ' ' -f 1
}

if [[ -f $file ]] && [[ $(sum_of "$file") == "$sha256" ]]; then
  say "$file is there already"
  exit
fi

python=${PYTHON:-python3}
[[ -x .venv/bin/python ]] && python=.venv/bin/python
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
say "downloading scikit-learn's wheel (10 MB)"
"$python" -I -m pip --disable-pip-version-check download -q --no-deps \
  --only-binary :all: -d "$download" scikit-learn ||
  die 1 "pip could not download scikit-learn. Where there is no package index," \
    "put sklearn/datasets/data/digits.csv.gz of its wheel at $file."
"$python" -I - "$download" <<'PYTHON' || die 1 "the wheel has no digits.csv.gz"
import pathlib
import sys
import zipfile

folder = pathlib.Path(sys.argv[1])
(wheel,) = folder.glob("*.whl")
data = zipfile.ZipFile(wheel).read("sklearn/datasets/data/digits.csv.gz")
(folder / "digits.csv.gz").write_bytes(data)
PYTHON
[[ $(sum_of "$download/digits.csv.gz") == "$sha256" ]] ||
  die 1 "digits.csv.gz of the wheel is not the file that is expected"
mkdir -p .cache
mv "$download/digits.csv.gz" "$file"
say "$file: 1797 images of 8 x 8 pixels"
