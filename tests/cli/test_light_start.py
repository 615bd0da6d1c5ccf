"""What asks for little imports little."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import PATIENCE

HEAVY = ("starlette", "pydantic", "uvicorn", "numpy", "torch", "zmq", "tokenizers")


@pytest.mark.parametrize(
    "argv", [["--version"], ["serve", "--help"], ["serve", "--no-such-flag"], ["serve", "--port"]]
)
def test_help_and_refusals_import_nothing_heavy(argv: list[str]) -> None:
    script = (
        "import sys; from headrace.cli.main import main; main(sys.argv[1:]);"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *argv], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.splitlines()[-1] == "heavy: []", done.stderr
