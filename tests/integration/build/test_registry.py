"""The same with the box's real package index: pins from it, and a C extension built by setuptools."""

from __future__ import annotations

import os

from perfgate.build.local import KERNEL_TOOLS
from perfgate.build.work import LocalWork
from perfgate.host.sandbox import Confinement
from perfgate.records import Side
from perfgate.store.folders import Store
from tests.integration.build.lab import Lab, run_python

SETUP = (
    "from setuptools import Extension, setup\n"
    "setup(ext_modules=[Extension('sgl_kernel._C', ['kernel.c'])], packages=['sgl_kernel'])\n"
)
KERNEL = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", 0, -1, methods};
PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&module); }
"""


def test_pins_from_the_index(lab: Lab, store: Store) -> None:
    builder = lab.builder(store, surroundings=dict(os.environ))
    commit = builder.repository.resolve(lab.commit("packaging==24.2"))
    built = builder.build(Side.BASE, commit, log=store.root / "log")
    assert run_python(built.python, built.path_entries, "import packaging as p; print(p.__version__)") == "24.2"


def test_a_c_extension_built_by_setuptools(lab: Lab, store: Store, confined: Confinement) -> None:
    tools = lab.root / "tools"
    tools.mkdir()
    for name in set(KERNEL_TOOLS) - {"c++", "git"}:
        (tools / name).write_text("#!/bin/sh\necho release 1\n")
        (tools / name).chmod(0o755)
    lab.box["tools"] = {"stand-ins": str(tools)}
    system = "[build-system]\nrequires = ['setuptools>=61']\nbuild-backend = 'setuptools.build_meta'\n"
    files = {
        "sgl-kernel/pyproject.toml": system + "[project]\nname = 'sgl-kernel'\nversion = '0.3.21'\n",
        "sgl-kernel/setup.py": SETUP,
        "sgl-kernel/kernel.c": KERNEL,
        "sgl-kernel/sgl_kernel/__init__.py": "from ._C import answer\n",
    }
    rules = {"cuda_arch": "12.0a", "jobs": 1}
    work = LocalWork(kernel=True)
    builder = lab.builder(store, rules, work=work, confinement=confined, surroundings=dict(os.environ))
    commit = builder.repository.resolve(lab.commit(files=files))
    built = builder.build(Side.HEAD, commit, log=store.root / "log")
    assert run_python(built.python, built.path_entries, "import sgl_kernel; print(sgl_kernel.answer())") == "42"
    assert built.versions["sgl-kernel"] == "0.3.21 (built here)"
