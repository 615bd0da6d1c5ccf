"""`bench serve`: load on an OpenAI-compatible server, and what its clients see of it."""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from tqdm import tqdm

from headrace.bench.datasets import Vocabulary, as_texts, make_requests, needs_tokenizer
from headrace.bench.http_client import ConnectError, HttpClient, RequestError, Target
from headrace.bench.load import Plan, Run, arrival_times, run_load
from headrace.bench.report import Table, about, check_outputs, load_plots, write_json
from headrace.bench.serve_metrics import details, error_lines, figures, sections, times_of
from headrace.bench.settings import (
    CHAT,
    DatasetSettings,
    PlotSettings,
    ReportSettings,
    ServeSettings,
)
from headrace.bench.stream import encode_body, get_json, send_streamed
from headrace.errors import ConfigError, HeadraceError, ModelError
from headrace.hub.download import download_tokenizer
from headrace.hub.lookup import HUB_ID, PACKAGE_MODEL, find_model
from headrace.text.tokenizer import Tokenizer, load_tokenizer

POLL_INTERVAL = 0.2
STARTING_STATUSES = (502, 503, 504)
WARMUP_SEED_OFFSET = 1 << 32


class BenchError(HeadraceError):
    """The server cannot be measured. One line."""


def run(
    settings: ServeSettings, dataset: DatasetSettings, report: ReportSettings, plot: PlotSettings
) -> int:
    """Measure and tell; 0 if any request was answered.

    Raises:
        ConfigError: it cannot begin as asked; one line.
        BenchError: the server does not answer, or not even one request.
    """
    paths = [report.json]
    if settings.save_result:
        paths.append(str(Path(settings.result_dir or ".") / (settings.result_filename or "-")))
    check_outputs(*paths, plot=plot.plot)
    _raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        model, runs = runner.run(_measure(settings, dataset, show=not report.disable_tqdm))
    result = _result(settings, dataset, model, runs)
    for path in [report.json, _result_path(settings, model) if settings.save_result else None]:
        if path is not None:
            write_json(path, result)
    if plot.plot:
        _draw(plot.plot, settings, runs)
    return 0 if any(one["completed"] for one in result["runs"]) else 1


async def _measure(
    settings: ServeSettings, dataset: DatasetSettings, *, show: bool
) -> tuple[str, list[Run]]:
    """The model's name, and a run for each concurrency that was asked for."""
    target = Target.from_url(settings.base_url or f"http://{settings.host}:{settings.port}")
    headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    client = HttpClient(target, headers, settings.request_timeout)
    try:
        model, root = await find_served_model(client, settings)
        vocabulary = _vocabulary(settings, dataset, root)
        send = partial(send_streamed, client, settings.endpoint)
        warmups = replace(dataset, num_prompts=max(1, settings.num_warmups))
        bodies = _bodies(settings, warmups, vocabulary, model, settings.seed + WARMUP_SEED_OFFSET)
        for body, length in bodies[: settings.num_warmups]:
            if (error := (await send(body, length)).error) is not None:
                raise BenchError(f"the server failed a first request: {error}")
        runs = []
        for index, concurrency in enumerate(settings.max_concurrency or [None]):
            # Prompts of their own for each run: the server's prefix cache shall not know them.
            seed = settings.seed + index
            bodies = _bodies(settings, dataset, vocabulary, model, seed)
            rate, burstiness = settings.request_rate, settings.burstiness
            plan = Plan(bodies, arrival_times(len(bodies), rate, burstiness, seed), concurrency)
            title = f"Requests, {concurrency} at a time" if concurrency else "Requests"
            with tqdm(total=len(bodies), desc=title, disable=not show) as bar:
                runs.append(await run_load(plan, send, bar.update))
            print(_table(settings, model, target.url, concurrency, runs[-1]))
        return model, runs
    finally:
        client.close()


async def find_served_model(client: HttpClient, settings: ServeSettings) -> tuple[str, str | None]:
    """The model's name in requests, and what the server says it was loaded from.

    Waits for a server that is not there yet.

    Raises:
        BenchError: it does not come, or does not list its models.
    """
    deadline = time.monotonic() + settings.ready_timeout
    while True:
        try:
            status, answer = await get_json(client, "/v1/models")
            reason = f"HTTP {status}"
            if status not in STARTING_STATUSES:
                break
        except ConnectError as error:
            reason = str(error)
        except RequestError as error:
            raise BenchError(f"{client.target.url}/v1/models: {error}") from None
        if time.monotonic() >= deadline:
            raise BenchError(f"no server after {settings.ready_timeout:g} s: {reason}")
        await asyncio.sleep(POLL_INTERVAL)
    cards = answer.get("data") if status == 200 and isinstance(answer, dict) else None
    known = {card["id"]: card.get("root") for card in cards or [] if "id" in card}
    if settings.model is not None:
        return settings.model, known.get(settings.model)
    if not known:
        raise BenchError(
            f"{client.target.url}/v1/models lists no models (HTTP {status}); "
            "name one with --model" + (" and a key with --api-key" if status == 401 else "")
        )
    name, root = next(iter(known.items()))
    return name, root


def _vocabulary(
    settings: ServeSettings, dataset: DatasetSettings, root: str | None
) -> Vocabulary | None:
    """Tokens to make prompts of; None if they need none.

    Raises:
        ConfigError: needed, and not to be found here.
    """
    if not needs_tokenizer(dataset) and settings.tokenizer is None:
        return None
    name = settings.tokenizer or root or settings.model
    try:
        tokenizer = find_tokenizer(name)
    except ModelError as error:
        if settings.tokenizer is not None:
            raise ConfigError(f"tokenizer: {error}") from None
        raise ConfigError(
            f"the tokenizer of the server's model is not to be found here ({error}); "
            "name one with --tokenizer"
        ) from None
    return Vocabulary(tokenizer, excluded=frozenset(tokenizer.eos_token_ids))


def find_tokenizer(name: str | None) -> Tokenizer:
    """The tokenizer of a folder, a .gguf file, the packaged model, or a hub id.

    Raises:
        ModelError: there is none.
    """
    if name is not None and not Path(name).expanduser().exists() and HUB_ID.fullmatch(name):
        return load_tokenizer(
            download_tokenizer(name, revision=None, download_dir=None, token=None)
        )
    path = Path(name).expanduser() if name is not None else None
    if path is not None and (path / "tokenizer.json").is_file():
        return load_tokenizer(path)
    facts = find_model(None if name == PACKAGE_MODEL else name, needs_weights=False)
    return load_tokenizer(facts.tokenizer or facts.path)


def _bodies(
    settings: ServeSettings,
    dataset: DatasetSettings,
    vocabulary: Vocabulary | None,
    model: str,
    seed: int,
) -> list[tuple[bytes, int | None]]:
    """Ready to send, so that nothing is left to do while the clock runs."""
    requests = make_requests(dataset, vocabulary, seed)
    if settings.endpoint == CHAT or settings.prompts_as_text:
        requests = as_texts(requests, vocabulary, seed)
    return [(encode_body(one, model, settings), one.num_prompt_tokens) for one in requests]


def _table(settings: ServeSettings, model: str, url: str, concurrency: int | None, run: Run) -> str:
    metrics, percentiles = settings.metrics(), settings.percentiles()
    found = figures(run, metrics, percentiles, settings.limits())
    table = Table(f"{model} at {url}")
    limit = [("Most requests under way", f"{concurrency}")] if concurrency else []
    table.add("Asked for", [("Requests/s", f"{settings.request_rate:g}"), *limit])
    shown = metrics if found["completed"] else []
    for heading, rows in sections(found, shown, percentiles):
        table.add(heading, rows)
    lines = [str(table)]
    if found["errors"]:
        lines += ["Failed:", *error_lines(found["errors"])]
    return "\n".join(lines)


def _result(
    settings: ServeSettings, dataset: DatasetSettings, model: str, runs: list[Run]
) -> dict[str, Any]:
    """As files hold it. The key of the server is left out."""
    asked = {name: value for name, value in asdict(settings).items() if name != "api_key"}
    found: list[dict[str, Any]] = []
    for concurrency, one in zip(settings.max_concurrency or [None], runs, strict=True):
        values = figures(one, settings.metrics(), settings.percentiles(), settings.limits())
        more = details(one) if settings.save_detailed else {}
        found.append({"max_concurrency": concurrency, **values, **more})
    return {
        "about": about(model=model),
        "settings": {**asked, "request_rate": f"{settings.request_rate:g}"},
        "dataset": asdict(dataset),
        "runs": found,
    }


def _result_path(settings: ServeSettings, model: str) -> str:
    name = settings.result_filename
    if name is None:
        load = "-".join(str(number) for number in settings.max_concurrency) or "all"
        plain = "".join(c if c.isalnum() or c in "._" else "-" for c in Path(model).name)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = f"headrace-{settings.request_rate:g}qps-concurrency-{load}-{plain}-{stamp}.json"
    return str(Path(settings.result_dir or ".") / name)


def _draw(path: str, settings: ServeSettings, runs: list[Run]) -> None:
    """Percentiles of the last run's times, and throughput over concurrency."""
    done = [result for result in runs[-1].results if result.error is None]
    series = {
        metric: [seconds * 1000 for seconds in times_of(metric, done)]
        for metric in settings.metrics()
    }
    throughput = {
        concurrency: figures(one, [], [], {})["output_throughput"]
        for concurrency, one in zip(settings.max_concurrency, runs, strict=False)
    }
    load_plots().load_curves(path, series, throughput)


def _raise_file_limit() -> None:
    """As many connections as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
