"""A child process for tests: `python -m tests.ipc.children PIPES BEHAVIOUR`."""

import argparse
import ctypes
import signal
import sys
import time

from headrace.ipc.process import LIFE_PIPE, PARENT_PIPE, ParentWatch

parser = argparse.ArgumentParser()
parser.add_argument(PARENT_PIPE, type=int, dest="parent_pipe")
parser.add_argument(LIFE_PIPE, type=int, dest="life_pipe")
parser.add_argument("behaviour")
options = parser.parse_args()
watch = ParentWatch(options.parent_pipe, options.life_pipe, lambda: None)

match options.behaviour:
    case "leave":
        sys.exit(3)
    case "sleep":
        time.sleep(600)
    case "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    case "native":
        # Python's lock is held: no thread of this process can run.
        watch.use_signal()
        ctypes.PyDLL(None).sleep(600)
    case other:
        raise SystemExit(f"no such behaviour: {other}")
