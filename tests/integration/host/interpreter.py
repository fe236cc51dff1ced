"""A Python of its own, so that something outside both trees and outside every environment can be changed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


def copy_interpreter(where: Path, sitecustomize: str) -> Path:
    """The interpreter that runs the tests, copied without its packages; `sitecustomize` lies in its library."""
    real = Path(sys.base_prefix)
    without = shutil.ignore_patterns("site-packages", "__pycache__", "test", "tests", "idlelib", "*.a")
    shutil.copytree(real / "lib" / VERSION, where / "lib" / VERSION, ignore=without, symlinks=True)
    (where / "lib" / VERSION / "site-packages").mkdir()
    for library in (real / "lib").glob("libpython*"):
        shutil.copy2(library, where / "lib" / library.name, follow_symlinks=False)
    (where / "bin").mkdir()
    shutil.copy2((real / "bin" / VERSION).resolve(), where / "bin" / VERSION)
    for name in ("python", "python3"):
        (where / "bin" / name).symlink_to(VERSION)
    (where / "lib" / VERSION / "sitecustomize.py").write_text(sitecustomize)
    return where / "bin" / VERSION


def losing(variable: str, marked_by: str, in_file: str) -> str:
    """A sitecustomize that takes a variable away where a tree's file holds a mark: on one side only."""
    return f"""
import os
for tree in os.environ.get("PYTHONPATH", "").split(":")[1:]:
    try:
        with open(tree + "/{in_file}") as file:
            marked = {marked_by!r} in file.read()
    except OSError:
        continue
    if marked:
        os.environ.pop("{variable}", None)
"""
