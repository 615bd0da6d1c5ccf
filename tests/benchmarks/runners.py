"""Stand-ins for engines: runner scripts that need nothing installed, and how to launch them."""

from __future__ import annotations

import sys
from pathlib import Path

from peer_parts.engines import RUNNERS, Launch
from peer_parts.floors import ModelCost
from peer_parts.models import TrialModel

from tests.waiting import PATIENCE

GOOD = "[output_len] * len(prompts)"
SHORT = "[output_len - 1] * len(prompts)"
CRASH = "1 / 0"

SCRIPT = """
import sys
from runner_protocol import serve

class Fake:
    facts = {{"version": "7"}}
    def __init__(self, model, threads, limits, settings):
        print("noise on standard output")
        if model == "missing":
            raise FileNotFoundError("no such model")
    def generate(self, prompts, output_len):
        return {lengths} if len(prompts[0]) > 4 else [output_len]

serve(Fake)
"""
"""Prompts of four tokens, which are the warm-up, are always answered rightly."""


def fake_launch(name: str, folder: Path, lengths: str = GOOD, model: str = "here") -> Launch:
    """A runner whose answers have these lengths."""
    script = folder / f"{name.replace(' ', '_')}.py"
    script.write_text(SCRIPT.format(lengths=lengths))
    return Launch(
        name, [sys.executable, str(script)], model, 2, folder / f"{name}.log",
        env={"PYTHONPATH": str(RUNNERS)}, start_timeout=PATIENCE, run_timeout=PATIENCE,
    )  # fmt: skip


COST = ModelCost(
    weight_bytes=1000, layer_weights=400, head_weights=100, kv_bytes=10, attention_operations=20
)
MODEL = TrialModel(Path("here"), COST)
