"""What is measured, by which engines, and what is asked of the results. Runs nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

GGUF = "SmolLM2-135M, Q4_1 file"
BF16 = "SmolLM2-135M, bf16"
LLAMA_1B = "Llama shape of 1.5B, bf16"
LLAMA_7B = "Llama shape of 7B, 4-bit"

HEADRACE = "headrace"
INT8 = "headrace int8"
AVX2 = "headrace avx2"
AVX512 = "headrace avx512"
OPENVINO = "openvino"
VLLM = "vllm"
LLAMA_CPP = "llama_cpp"
PEERS = (OPENVINO, VLLM, LLAMA_CPP)

RATE = "rate"
FIRST_TOKEN = "first_token_seconds"
OTHERS = "others"
"""Share of the machine's processor time that went to strangers during a turn."""


@dataclass(frozen=True)
class Job:
    """Prompts of random tokens, all given at once, answered greedily past any end token."""

    num_prompts: int
    input_len: int
    output_len: int

    @property
    def max_len(self) -> int:
        return self.input_len + self.output_len

    def quick(self) -> Job:
        """The same shape, small enough for a smoke run."""
        return Job(min(self.num_prompts, 4), min(self.input_len, 64), min(self.output_len, 8))


Kind: TypeAlias = Literal["offline", "serving", "start"]


@dataclass(frozen=True)
class Cell:
    """One table: a job on one model, done by several engines in turns.

    Attributes:
        unit: of the main figure: tokens per second (input tokens of pure prefill), or of starts
            the seconds to the first token.
    """

    key: str
    title: str
    model: str
    job: Job
    engines: tuple[str, ...]
    kind: Kind = "offline"
    unit: Literal["output tokens/s", "input tokens/s", "seconds"] = "output tokens/s"

    @property
    def figure(self) -> str:
        """The name of the main figure among a sample's values."""
        return FIRST_TOKEN if self.kind == "start" else RATE


@dataclass(frozen=True)
class Target:
    """One demand on a figure of headrace.

    Attributes:
        figure: of the engine's samples: RATE or another value that they bring; or a share
            ("floor", "stream", "peak") that `floors` gives.
        at_least, at_most: one of them.
        versus: the figure is divided by that of this engine in that cell (the same cell if the
            second part is empty).
    """

    work: str
    cell: str
    engine: str
    figure: str
    at_least: float | None = None
    at_most: float | None = None
    versus: tuple[str, str] | None = None


BATCH, STREAM, PREFILL = Job(128, 128, 128), Job(1, 32, 256), Job(8, 1024, 1)
START = Job(1, 8, 1)
CHATS, CHATS_OF_TEXTS = Job(32, 128, 128), Job(32, 158, 128)
BIG_STREAM, BIG_PREFILL = Job(1, 32, 32), Job(1, 1024, 1)

_Engines: TypeAlias = tuple[str, ...]
_ON_GGUF: _Engines = (HEADRACE, OPENVINO, LLAMA_CPP)
_ON_BF16: _Engines = (HEADRACE, VLLM)


def _cells() -> tuple[Cell, ...]:
    rate_in: Literal["input tokens/s"] = "input tokens/s"
    found = []
    for model, short, engines in ((GGUF, "gguf", _ON_GGUF), (BF16, "bf16", _ON_BF16)):
        # On the GGUF file, int8 is what its peers do: it rounds activations to 8 bits.
        rates = (INT8, *engines) if model == GGUF else engines
        batch = f"128 prompts of 128, 128 out; {model}"
        stream = f"single stream, 32 in, 256 out; {model}"
        prefill = f"prefill of 8 x 1,024; {model}"
        start = f"process start to first token; {model}"
        found += [
            Cell(f"W1 {short}", batch, model, BATCH, rates),
            Cell(f"W2 {short}", stream, model, STREAM, rates),
            Cell(f"W3 {short}", prefill, model, PREFILL, rates, unit=rate_in),
            Cell(f"W4 {short}", start, model, START, engines, "start", "seconds"),
        ]
    found.append(
        Cell("W1x32 gguf", f"32 prompts of 128, 128 out; {GGUF}", GGUF, CHATS, (HEADRACE,))
    )
    for model, short, engines in ((GGUF, "gguf", (HEADRACE,)), (BF16, "bf16", _ON_BF16)):
        title = f"32 streamed chats at a time over HTTP, 128 in all, 128 out; {model}"
        found.append(Cell(f"W5 {short}", title, model, CHATS, engines, "serving"))
    title = f"the same with texts of 128, to which the template adds 30; {GGUF}"
    found.append(Cell("W5 texts", title, GGUF, CHATS_OF_TEXTS, (HEADRACE,), "serving"))
    for model, short in ((LLAMA_1B, "1.5B"), (LLAMA_7B, "7B")):
        found += [
            Cell(f"W11 stream {short}", f"single stream, 32 in, 32 out; {model}", model,
                 BIG_STREAM, (HEADRACE,)),
            Cell(f"W11 prefill {short}", f"prefill of 1 x 1,024; {model}", model,
                 BIG_PREFILL, (HEADRACE,), unit=rate_in),
        ]  # fmt: skip
    return tuple(found)


CELLS = {cell.key: cell for cell in _cells()}

TARGETS = (
    Target("W1", "W1 gguf", HEADRACE, RATE, 3, versus=("", OPENVINO)),
    Target("W1", "W1 gguf", HEADRACE, RATE, 8, versus=("", LLAMA_CPP)),
    Target("W1", "W1 gguf", HEADRACE, "floor", 0.60),
    Target("W1", "W1 bf16", HEADRACE, RATE, 5, versus=("", VLLM)),
    Target("W1", "W1 bf16", HEADRACE, "floor", 0.60),
    Target("W2", "W2 gguf", HEADRACE, RATE, 2, versus=("", LLAMA_CPP)),
    Target("W2", "W2 gguf", HEADRACE, RATE, 2.5, versus=("", OPENVINO)),
    Target("W2", "W2 gguf", HEADRACE, "stream", 0.60),
    Target("W2", "W2 bf16", HEADRACE, "stream", 0.85),
    Target("W3", "W3 gguf", HEADRACE, RATE, 3, versus=("", OPENVINO)),
    Target("W3", "W3 gguf", HEADRACE, RATE, 12, versus=("", LLAMA_CPP)),
    Target("W3", "W3 gguf", HEADRACE, "peak", 0.45),
    Target("W3", "W3 bf16", HEADRACE, RATE, 4, versus=("", VLLM)),
    Target("W3", "W3 bf16", HEADRACE, "peak", 0.45),
    Target("W4", "W4 gguf", HEADRACE, FIRST_TOKEN, at_most=1.5),
    Target("W4", "W4 gguf", HEADRACE, "serve_ready_seconds", at_most=2.0),
    Target("W4", "W4 gguf", HEADRACE, "import_seconds", at_most=0.15),
    Target("W5", "W5 gguf", HEADRACE, RATE, 0.85, versus=("W1x32 gguf", HEADRACE)),
    Target("W5", "W5 gguf", HEADRACE, "front_us_per_token", at_most=40),
    Target("W5", "W5 gguf", HEADRACE, "itl_p99_over_median", at_most=3),
    Target("W9", "W2 bf16", INT8, RATE, 1.5, versus=("", HEADRACE)),
    Target("W9", "W2 bf16", INT8, "log_likelihood_change", at_most=0.01),
    *(
        Target("W10", cell, engine, RATE, factor, versus=("", LLAMA_CPP))
        for engine in (AVX512, AVX2)
        for cell, factor in (("W2 gguf", 1.2), ("W1 gguf", 2))
    ),
    Target("W11", "W11 stream 1.5B", HEADRACE, "stream", 0.85),
    Target("W11", "W11 prefill 1.5B", HEADRACE, "peak", 0.55),
    Target("W11", "W11 stream 7B", HEADRACE, "stream", 0.85),
    Target("W11", "W11 prefill 7B", HEADRACE, "peak", 0.55),
)

WORKS = ("W1", "W2", "W3", "W4", "W5", "W9", "W10", "W11")


def stand_in(engine: str, own_isa: str) -> str:
    """Headrace itself for the instruction set that it would choose anyway."""
    return HEADRACE if engine == f"{HEADRACE} {own_isa}" else engine


def plan(
    works: Collection[str], peers: Collection[str], own_isa: str, *, quick: bool = False
) -> list[Cell]:
    """The cells to run: those of the works, each with the engines that its targets name.

    Args:
        peers: further engines; headrace always takes part.
    """
    wanted: dict[str, set[str]] = {}
    for target in TARGETS:
        if target.work in works:
            cell = CELLS[target.cell]
            # W9 and W10 add an engine to a cell of another work and compare it with one there.
            mine = {target.engine} if target.engine not in cell.engines else set(cell.engines)
            wanted.setdefault(target.cell, set()).update(mine)
            if target.versus is not None:
                other, engine = target.versus
                wanted.setdefault(other or target.cell, set()).add(engine)
    wanted = {key: {stand_in(name, own_isa) for name in names} for key, names in wanted.items()}
    if "W4" in works:
        wanted.setdefault("W4 bf16", set()).update(CELLS["W4 bf16"].engines)
    if "W5" in works:
        for key in ("W5 bf16", "W5 texts"):
            wanted.setdefault(key, set()).update(CELLS[key].engines)
    order = (HEADRACE, INT8, AVX512, AVX2, *PEERS)
    cells = []
    for key, cell in CELLS.items():
        engines = tuple(
            engine
            for engine in order
            if engine in wanted.get(key, ()) and (engine in peers or engine not in PEERS)
        )
        if engines:
            job = cell.job.quick() if quick else cell.job
            cells.append(replace(cell, engines=engines, job=job))
    return cells
