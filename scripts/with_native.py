"""Runs a Python module with another build of the native kernels: for sanitizers.

python scripts/with_native.py build/sanitize/_native.so pytest tests/ops
"""

from __future__ import annotations

import importlib.util
import runpy
import sys

import headrace

NAME = "headrace._native"


def main() -> None:
    path, module, *arguments = sys.argv[1:]
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is not an extension module of this Python")
    native = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = native
    spec.loader.exec_module(native)
    headrace._native = native
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
