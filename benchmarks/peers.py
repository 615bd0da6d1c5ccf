"""The same work on headrace and its peers, in turns, beside the limits of the machine.

    python benchmarks/peers.py [--work W1 W2 ...] [--peers openvino vllm llama_cpp] [--repeat 3]

Makes an environment for each peer from public packages (some GB; llama.cpp is compiled), measures
the machine, starts all engines of a work and holds them still, gives each one turn a round, and
writes medians, ratios, shares of what the machine allows, and whether targets are met to
benchmarks/RESULTS.md. A peer that cannot be had or fails becomes a line that says why. Needs
Linux and the models of scripts/get_models.py. All of it takes an hour or two; `--quick` some
minutes, with jobs too small to compare. Run it with nothing else on the machine.

With `--state FILE` further calls add to what earlier ones found, one work at a time for instance;
the page says then that it is made of several runs. `--gate COMMAND` is for a machine that others
use too: COMMAND is started before each start and turn, says a line when the machine is free, and
has it kept free until its standard input ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from peer_parts.engines import RUNNERS, Engine, Launch, Values, make_engine
from peer_parts.environments import ENVIRONMENTS, InstallFailed, make_environment
from peer_parts.models import TrialModel, find_trial_model
from peer_parts.processes import Disturbance, EngineFailed
from peer_parts.report import render
from peer_parts.results import Results
from peer_parts.works import AVX2, AVX512, HEADRACE, INT8, OTHERS, PEERS, VLLM, WORKS, Cell, plan

from headrace.bench.limits import measure_limits
from headrace.bench.report import about
from headrace.errors import HeadraceError
from headrace.ops.native_ops import NativeOps

ROOT = Path(__file__).parent.parent
TOKENS = range(1000, 30000)
"""Ordinary tokens in the vocabulary of every model here."""
MAX_OTHERS = 0.05
"""Share of the machine that others may take in a turn before it is tried again."""
MAX_TRIES = 3

Launches = Callable[[str, TrialModel], Launch]
Gate = Callable[[], contextlib.AbstractContextManager[None]]

HEADRACE_VARIANTS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    HEADRACE: ({}, {}),
    INT8: ({"quantization": "int8"}, {}),
    AVX2: ({}, {"HEADRACE_ISA": "avx2"}),
    AVX512: ({}, {"HEADRACE_ISA": "avx512"}),
}
"""Name -> options and environment."""


def run_cell(
    cell: Cell,
    model: TrialModel,
    launches: Launches,
    results: Results,
    repeat: int,
    gate: Gate,
    save: Callable[[], None] = lambda: None,
) -> None:
    """Start the cell's engines, give each `repeat` turns, stop them; failures become results.

    Args:
        save: called after each turn.
    """
    results.begin(cell, model.cost)
    with contextlib.ExitStack() as stack:
        running: dict[str, Engine] = {}
        for name in cell.engines:
            try:
                engine = make_engine(launches(name, model), cell)
                stack.callback(engine.stop)
                say(f"{cell.key}: starting {name}")
                with gate():
                    results.add_facts(cell.key, name, engine.start())
                running[name] = engine
            except (EngineFailed, InstallFailed) as error:
                say(f"{cell.key}: {name}: {error}")
                results.fail(cell.key, name, str(error))
        for turn in range(repeat):
            prompts = make_prompts(cell, turn)
            for name, engine in list(running.items()):
                try:
                    values = take_turn(engine, prompts, gate)
                except EngineFailed as error:
                    results.fail(cell.key, name, str(error))
                    say(f"{cell.key}: {name}: {error}")
                    del running[name]
                else:
                    results.add(cell.key, name, values)
                    say(f"{cell.key}: {name}: {values[cell.figure]:,.4g} {cell.unit}, "
                        f"others took {values[OTHERS]:.0%} of the machine")  # fmt: skip
                save()


def take_turn(engine: Engine, prompts: list[list[int]], gate: Gate) -> Values:
    """One turn; again if other processes disturbed it, and then the quietest of all tries."""
    tries: list[Values] = []
    while len(tries) < MAX_TRIES and all(one[OTHERS] > MAX_OTHERS for one in tries):
        with gate():
            disturbance = Disturbance()
            values = engine.run(prompts)
            tries.append({**values, OTHERS: disturbance.share()})
    return min(tries, key=lambda one: one[OTHERS])


def make_prompts(cell: Cell, turn: int) -> list[list[int]]:
    """The same for every engine, others in each turn."""
    rng = random.Random(f"{cell.key} {turn}")
    job = cell.job
    return [rng.choices(TOKENS, k=job.input_len) for _ in range(job.num_prompts)]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Launcher:
    """Makes the peers' environments when first asked for, and the commands of all engines.

    Args:
        pythons: peer -> a Python that has it already.
        folder: of environments and logs.
    """

    def __init__(
        self, pythons: dict[str, Path], folder: Path, torch: Sequence[str], threads: int
    ) -> None:
        self._pythons, self._folder, self._torch = dict(pythons), folder, torch
        self._threads = threads
        self._failures: dict[str, str] = {}

    def __call__(self, name: str, model: TrialModel) -> Launch:
        """Raises InstallFailed, every time, if the peer cannot be had."""
        log = self._folder / f"{name.replace(' ', '-')}.log"
        if name in PEERS:
            python = str(self._python(name))
            server = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(model.path)]
            return Launch(
                name, [python, str(RUNNERS / f"run_{name}.py")], str(model.path), self._threads,
                log, env=VLLM_ENV if name == VLLM else {}, server=server if name == VLLM else (),
            )  # fmt: skip
        settings, env = HEADRACE_VARIANTS[name]
        headrace = [sys.executable, "-m", "headrace.cli.main"]
        threads = ["--num-threads", str(self._threads)]
        return Launch(
            name, [sys.executable, str(RUNNERS / "run_headrace.py")], str(model.path),
            self._threads, log, settings={**model.settings, **settings}, env=env,
            server=[*headrace, "serve", str(model.path), *threads],
            startup=[*headrace, "bench", "startup", "--model", str(model.path), *threads,
                     "--num-iters", "1", "--num-iters-warmup", "0", "--disable-tqdm", "--json"],
        )  # fmt: skip

    def _python(self, peer: str) -> Path:
        if peer in self._failures:
            raise InstallFailed(self._failures[peer])
        if peer not in self._pythons:
            try:
                self._pythons[peer] = make_environment(peer, self._folder, self._torch)
            except InstallFailed as error:
                self._failures[peer] = f"not installed: {error}"
                raise InstallFailed(self._failures[peer]) from None
        return self._pythons[peer]


VLLM_ENV = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}


def make_gate(command: str | None) -> Gate:
    """See the head of this file."""

    @contextlib.contextmanager
    def hold() -> Iterator[None]:
        keeper = subprocess.Popen(
            shlex.split(command or ""), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with keeper:
            assert keeper.stdout is not None
            if not keeper.stdout.readline():
                raise SystemExit(f"peers: error: {command}: ended without a word")
            yield

    return hold if command else contextlib.nullcontext


def describe_run(args: argparse.Namespace, threads: int, isa: str, gate: Gate) -> dict[str, Any]:
    """Date, machine and its limits, version."""
    facts = about()
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    version = f"{facts['headrace']} {commit.stdout.strip()}{' and changes' * bool(changes.stdout)}"
    with gate():
        limits = measure_limits(threads).to_json()
    return {
        "date": facts["date"], "cpu": facts["cpu"], "cores": facts["cores"], "isa": isa,
        "headrace": version.strip(), "limits": limits, "quick": args.quick,
        "works": args.work, "repeat": args.repeat,
    }  # fmt: skip


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = os.environ.get("HEADRACE_TEST_MODELS", "~/.cache/headrace-models")
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--repeat", type=int, default=3, help="turns of each engine")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--envs", type=Path, help="keep environments here, and use those there")
    parser.add_argument("--python", nargs="+", default=[], metavar="PEER=PATH",
                        help="a Python that has this peer; none is made")  # fmt: skip
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip gets for vLLM's PyTorch")
    parser.add_argument("--models", type=Path, default=Path(models).expanduser())
    parser.add_argument("--state", type=Path, help="JSON file of results to add to")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/RESULTS.md")
    parser.add_argument("--gate", metavar="COMMAND", help="keeps the machine free; see above")
    parser.add_argument("--quick", action="store_true", help="small jobs, one turn")
    args = parser.parse_args(argv)
    for pair in args.python:
        if pair.partition("=")[0] not in ENVIRONMENTS or "=" not in pair:
            parser.error(
                f"--python {pair}: expected one of {', '.join(ENVIRONMENTS)}, = and a path"
            )
    if args.repeat < 1 or args.threads < 1:
        parser.error("--repeat and --threads take positive numbers")
    if args.quick:
        args.repeat = 1
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    gate = make_gate(args.gate)
    pythons = {name: Path(path) for name, _, path in (p.partition("=") for p in args.python)}
    isa = NativeOps(1).name
    results = Results.read(args.state) if args.state else Results()

    def save() -> None:
        if args.state:
            results.write(args.state)
        args.out.write_text(render(results), encoding="utf-8")

    with contextlib.ExitStack() as stack:
        folder = args.envs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        launcher = Launcher(pythons, folder, shlex.split(args.torch), args.threads)
        results.runs.append(describe_run(args, args.threads, isa, gate))
        for cell in plan(args.work, args.peers, isa, quick=args.quick):
            try:
                model = find_trial_model(cell.model, args.models, folder)
                run_cell(cell, model, launcher, results, args.repeat, gate, save)
            except (HeadraceError, OSError, ValueError) as error:
                say(f"{cell.key}: {error}")
                results.fail(cell.key, HEADRACE, str(error))
            save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
