"""A child process for tests: `python -m tests.ipc.children PIPES BEHAVIOUR [FILE]`.

The file appears when the child has come to what it was told to do.
"""

import argparse
import ctypes
import signal
import sys
import time
from pathlib import Path

from headrace.ipc.process import LIFE_PIPE, PARENT_PIPE, ParentWatch

parser = argparse.ArgumentParser()
parser.add_argument(PARENT_PIPE, type=int, dest="parent_pipe")
parser.add_argument(LIFE_PIPE, type=int, dest="life_pipe")
parser.add_argument("behaviour")
parser.add_argument("file", type=Path, nargs="?")
options = parser.parse_args()
watch = ParentWatch(options.parent_pipe, options.life_pipe, lambda: None)


def tell() -> None:
    if options.file is not None:
        options.file.touch()


match options.behaviour:
    case "leave":
        sys.exit(3)
    case "sleep":
        tell()
        time.sleep(600)
    case "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tell()
        time.sleep(600)
    case "native":
        # Python's lock is held: no thread of this process can run.
        watch.use_signal()
        tell()
        ctypes.PyDLL(None).sleep(600)
    case other:
        raise SystemExit(f"no such behaviour: {other}")
