"""What a user may ask of the benchmarks: records of options, checked. Imports nothing heavy."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from headrace.config.args import EngineArgs, option
from headrace.errors import ConfigError

DATASETS = ("random", "custom", "sharegpt", "prefix_repetition")
METRICS = ("ttft", "tpot", "itl", "e2el")
"""Time to first token, time per further token, gap between tokens, whole request."""
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
API_KEY_ENV = "OPENAI_API_KEY"


@dataclass
class DatasetSettings:
    """Which prompts, and how much is to be answered.

    Raises:
        ConfigError: a value that cannot work.
    """

    dataset_name: str = option(
        "random",
        "`random` token ids; `custom`, a file with one JSON object a line "
        '({"prompt": ..., "output_tokens": n}); `sharegpt`, a JSON file of conversations; '
        "`prefix_repetition`, random prompts of which groups begin alike.",
        group="Dataset",
        choices=DATASETS,
    )
    dataset_path: str | None = option(None, "The file of `custom` and `sharegpt`.", group="Dataset")
    num_prompts: int = option(
        128, "Requests to make. A shorter file begins again at its start.",
        group="Dataset", kind="size",
    )  # fmt: skip
    input_len: int = option(
        128, "Tokens of a random prompt, after its prefix.",
        group="Dataset", kind="size", short=("--random-input-len",),
    )  # fmt: skip
    output_len: int | None = option(
        None,
        "Tokens to generate per request. Default: what the file says, else 128.",
        group="Dataset",
        kind="size",
        short=("--random-output-len", "--custom-output-len", "--sharegpt-output-len"),
    )
    random_range_ratio: float = option(
        0.0, "Lengths of random prompts and answers vary evenly by up to this share, both ways.",
        group="Dataset",
    )  # fmt: skip
    random_prefix_len: int = option(
        0, "Tokens that all random prompts begin with.", group="Dataset", kind="size"
    )
    prefix_repetition_prefix_len: int = option(
        256, "Tokens of each shared beginning.", group="Dataset", kind="size"
    )
    prefix_repetition_suffix_len: int = option(
        256, "Tokens of a prompt after its shared beginning.", group="Dataset", kind="size"
    )
    prefix_repetition_num_prefixes: int = option(
        10, "Different beginnings.", group="Dataset", kind="size"
    )
    prefix_repetition_output_len: int = option(
        128, "Tokens to generate per request.", group="Dataset", kind="size"
    )
    shuffle: bool = option(True, "Take a file's entries in a random order.", group="Dataset")

    def __post_init__(self) -> None:
        _at_least(self, 1, "num_prompts", "input_len", "output_len",
                  "prefix_repetition_suffix_len", "prefix_repetition_num_prefixes",
                  "prefix_repetition_output_len")  # fmt: skip
        _at_least(self, 0, "random_prefix_len", "prefix_repetition_prefix_len")
        if not 0 <= self.random_range_ratio < 1:
            raise ConfigError(
                f"random_range_ratio must be from 0 to below 1, got {self.random_range_ratio}"
            )
        if self.dataset_name in ("custom", "sharegpt") and self.dataset_path is None:
            raise ConfigError(f"dataset_name {self.dataset_name} needs a file: --dataset-path")
        if self.dataset_name not in ("custom", "sharegpt") and self.dataset_path is not None:
            raise ConfigError(
                "dataset_path needs --dataset-name custom or sharegpt, to say what the file is"
            )


@dataclass
class LatencySettings:
    """One batch, timed again and again."""

    input_len: int = option(32, "Tokens of each prompt.", group="Batch", kind="size")
    output_len: int = option(128, "Tokens to generate for each.", group="Batch", kind="size")
    batch_size: int = option(8, "Prompts answered together.", group="Batch", kind="size")
    num_iters_warmup: int = option(3, "Batches before the measurement.", group="Batch")
    num_iters: int = option(10, "Batches measured.", group="Batch")
    temperature: float = option(0.0, "Of the sampler; 0 is greedy.", group="Batch")

    def __post_init__(self) -> None:
        _at_least(self, 1, "input_len", "output_len", "batch_size", "num_iters")
        _at_least(self, 0, "num_iters_warmup", "temperature")


@dataclass
class ThroughputSettings:
    """All prompts at once, offline."""

    num_iters: int = option(1, "How often all is answered; the median is told.", group="Batch")
    ignore_eos: bool = option(
        True, "Generate as many tokens as asked for, whatever they are.", group="Batch"
    )
    temperature: float = option(0.0, "Of the sampler; 0 is greedy.", group="Batch")

    def __post_init__(self) -> None:
        _at_least(self, 1, "num_iters")
        _at_least(self, 0, "temperature")


@dataclass
class StartupSettings:
    """Fresh processes."""

    num_iters_warmup: int = option(1, "Starts before the measurement.", group="Processes")
    num_iters: int = option(5, "Starts of each kind; the medians are told.", group="Processes")

    def __post_init__(self) -> None:
        _at_least(self, 1, "num_iters")
        _at_least(self, 0, "num_iters_warmup")


@dataclass
class ServeSettings:
    """A server, the load on it, and what to tell of its answers.

    Raises:
        ConfigError: a value that cannot work.
    """

    base_url: str | None = option(
        None, "Where the server is, like http://127.0.0.1:8000; wins over --host and --port.",
        group="Server",
    )  # fmt: skip
    host: str = option("127.0.0.1", "Name or address of the server.", group="Server")
    port: int = option(8000, "Port of the server.", group="Server")
    endpoint: str = option(
        COMPLETIONS, "What is asked: text completions or chats.",
        group="Server", choices=(COMPLETIONS, CHAT),
    )  # fmt: skip
    model: str | None = option(
        None, "Name of the model in requests. Default: the first the server lists.", group="Server"
    )
    tokenizer: str | None = option(
        None,
        "Folder, .gguf file or hub id of the tokenizer that makes and counts prompts. Default: "
        "that of the model, if it can be found here.",
        group="Server",
    )
    api_key: str | None = option(
        None, f"Key sent as `Authorization: Bearer KEY`; default is ${API_KEY_ENV}.",
        group="Server", secret=True,
    )  # fmt: skip
    ready_timeout: float = option(
        30.0, "Seconds to wait for a server that is not there yet.", group="Server"
    )

    request_rate: float = option(
        math.inf, "Requests sent per second; `inf` sends all at once.", group="Load"
    )
    burstiness: float = option(
        1.0,
        "Shape of the gaps between requests (gamma distribution): 1 is random arrival (Poisson), "
        "less comes in bursts, more is even.",
        group="Load",
    )
    max_concurrency: list[Any] = option(  # noqa: RUF009 - a fresh copy
        [], "Most requests under way. Several numbers: one run for each.", group="Load"
    )
    num_warmups: int = option(1, "Requests before the measurement.", group="Load")
    request_timeout: float = option(600.0, "Seconds after which a request failed.", group="Load")
    seed: int = option(
        0,
        "Of prompts and arrivals. A server may still hold the prompts of an earlier run with the "
        "same seed in its prefix cache.",
        group="Load",
    )

    ignore_eos: bool = option(
        False, "Ask for as many tokens as planned, whatever they are.", group="Requests"
    )
    temperature: float = option(0.0, "Of the sampler; 0 is greedy.", group="Requests")
    prompts_as_text: bool = option(
        False, "Send text completions as text, for servers that take no token ids.",
        group="Requests",
    )  # fmt: skip
    extra_body: dict[str, Any] = option(  # noqa: RUF009 - a fresh copy
        {}, "Further fields of every request, as JSON.", group="Requests"
    )

    percentile_metrics: str = option(
        ",".join(METRICS), f"Times to tell of: some of {', '.join(METRICS)}.", group="Report"
    )
    metric_percentiles: str = option(
        "90,99", "Percentiles of these times, with commas.", group="Report"
    )
    goodput: list[str] = option(  # noqa: RUF009 - a fresh copy
        [],
        "Limits in milliseconds, like ttft:200 tpot:50 e2el:5000. Requests within all of them "
        "make the goodput.",
        group="Report",
    )
    save_result: bool = option(
        False, "Write a JSON file as well, named by load, model and time.", group="Report"
    )
    result_dir: str | None = option(None, "Folder of that file.", group="Report")
    result_filename: str | None = option(None, "Name of that file.", group="Report")
    save_detailed: bool = option(
        False, "Put the times and the error of every request into JSON files.", group="Report"
    )

    def __post_init__(self) -> None:
        self.api_key = self.api_key or os.environ.get(API_KEY_ENV) or None
        self._check_server()
        self.max_concurrency = [_whole("max_concurrency", item) for item in self.max_concurrency]
        if not self.request_rate > 0:
            raise ConfigError(f"request_rate must be more than 0, got {self.request_rate}")
        if not 0 < self.burstiness < math.inf:
            raise ConfigError(f"burstiness must be more than 0, got {self.burstiness}")
        _at_least(self, 0, "num_warmups", "temperature", "ready_timeout", "seed")
        if not self.request_timeout > 0:
            raise ConfigError(f"request_timeout must be more than 0, got {self.request_timeout}")
        if not isinstance(self.extra_body, dict):
            raise ConfigError('extra_body must be a JSON object, like {"top_p": 0.9}')
        self.metrics()
        self.percentiles()
        self.limits()

    def _check_server(self) -> None:
        if not 1 <= self.port <= 65535:
            raise ConfigError(f"port must be from 1 to 65535, got {self.port}")
        if self.base_url is None:
            return
        try:
            parts = urlsplit(self.base_url)
            is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is no number, brackets that do not close
            is_usable = False
        if not is_usable:
            raise ConfigError(f"base_url must be like http://127.0.0.1:8000, got {self.base_url!r}")

    def metrics(self) -> list[str]:
        """The times to tell of, in the usual order."""
        wanted = [name.strip() for name in self.percentile_metrics.split(",") if name.strip()]
        for name in wanted:
            if name not in METRICS:
                raise ConfigError(f"percentile_metrics may hold {', '.join(METRICS)}, not {name!r}")
        return [name for name in METRICS if name in wanted]

    def percentiles(self) -> list[float]:
        """The percentiles, rising."""
        try:
            values = sorted({float(item) for item in self.metric_percentiles.split(",")})
        except ValueError:
            values = [math.nan]
        if not all(0 <= value <= 100 for value in values):
            raise ConfigError(
                "metric_percentiles must be numbers from 0 to 100 with commas, "
                f"got {self.metric_percentiles!r}"
            )
        return values

    def limits(self) -> dict[str, float]:
        """Name of a time -> the seconds it may take at most."""
        limits: dict[str, float] = {}
        for item in self.goodput:
            name, _, text = item.partition(":")
            try:
                limits[name] = float(text) / 1000
            except ValueError:
                limits[name] = math.nan
            if name not in ("ttft", "tpot", "e2el") or not limits[name] > 0:
                raise ConfigError(
                    f"goodput takes limits like ttft:200 tpot:50 e2el:5000, not {item!r}"
                )
        return limits


@dataclass
class ReportSettings:
    """What to do with the result, besides printing it."""

    json: str | None = option(
        None, "Write the result to this file.", group="Report", short=("--output-json",)
    )
    disable_tqdm: bool = option(False, "Show no progress.", group="Report")


@dataclass
class PlotSettings:
    """A picture of it."""

    plot: str | None = option(
        None, "Draw the result into this .png file (needs the extra `headrace[bench]`).",
        group="Report",
    )  # fmt: skip


def given_options(args: EngineArgs) -> dict[str, Any]:
    """The engine's options that are not at their defaults, as keywords."""
    defaults = asdict(EngineArgs())
    return {name: value for name, value in asdict(args).items() if value != defaults[name]}


def _at_least(record: object, low: int, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and not low <= value < math.inf:
            raise ConfigError(f"{name} must be at least {low}, got {value}")


def _whole(name: str, value: object) -> int:
    text = str(value)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name} must be whole numbers from 1 on, got {text!r}")
    return int(text)
