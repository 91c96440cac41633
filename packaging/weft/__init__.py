"""Starts the programs of Weft, which are not Python, in place of this one."""
import importlib.metadata
import os
import pathlib
import sys

_HERE = pathlib.Path(__file__).resolve().parent


def _refuse(text):
    print(f"weft: {text}", file=sys.stderr)
    sys.exit(2)


def _minor(version):
    return ".".join(version.split(".")[:2])


def _check_torch():
    built = (_HERE / "share/weft/libtorch_version").read_text().strip()
    wanted = f"pip install 'torch=={_minor(built)}.*'"
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        _refuse(f"torch {_minor(built)} is needed and no torch is installed: {wanted}")
    if _minor(found) != _minor(built):
        _refuse(f"this weft was built with torch {_minor(built)}, and torch {found} is "
                f"installed: {wanted}, or install the weft of torch {_minor(found)}")
    if not (_HERE.parent / "torch/lib/libtorch_cpu.so").exists():
        _refuse(f"torch {found} is not installed in {_HERE.parent}, where weft is: "
                "install both into one environment")


def _start(program):
    _check_torch()
    path = str(_HERE / "bin" / program)
    os.execv(path, [path, *sys.argv[1:]])


def weft():
    _start("weft")


def weftrun():
    _start("weftrun")
