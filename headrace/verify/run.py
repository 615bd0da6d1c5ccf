"""`headrace verify`: runs the battery, compares, and tells."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.bench.report import about, check_outputs, write_json
from headrace.config.args import EngineArgs
from headrace.engine.setup import make_engine_config
from headrace.errors import ConfigError
from headrace.verify.answers import Answer, Difference, first_difference
from headrace.verify.battery import Evidence, make_cases
from headrace.verify.session import open_session
from headrace.verify.settings import VerifySettings
from headrace.verify.workload import Workload

COLUMNS = "{:<34} {:>8} {:>7}  {:<40} {}"
REFERENCE, IDENTICAL, NOT_EXERCISED = "reference", "identical", "not exercised"


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one case.

    Attributes:
        result: `reference`, `identical`, `not exercised`, or where the first difference is.
    """

    varied: str
    requests: int
    tokens: int
    seen: str
    result: str
    difference: Difference | None
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether the case did what it says, and nothing differed."""
        return self.result in (REFERENCE, IDENTICAL)


def run(args: EngineArgs, settings: VerifySettings) -> int:
    """Run the battery; gives the exit status: 1 when an answer differs or a case did not happen.

    Raises:
        ConfigError, ModelError, EngineDeadError: it cannot be run; one line.
    """
    check_outputs(settings.json)
    logging.getLogger("headrace").setLevel(logging.WARNING)  # a dozen engines start
    args = replace(args, skip_tokenizer_init=True, disable_log_stats=True)
    config = make_engine_config(args)
    workload = Workload(settings, config.model)
    if workload.max_model_len > config.model.max_model_len:
        raise ConfigError(
            f"the battery needs a context of {workload.max_model_len} tokens, it holds "
            f"{config.model.max_model_len}: ask for less (--input-len, --output-len)"
        )
    if args.max_model_len is None:
        args = replace(args, max_model_len=workload.max_model_len)
    print(f"{config.model.model}: {_asked(settings)}\n")
    print(COLUMNS.format("varied", "requests", "tokens", "seen", "result"))
    rows: list[Row] = []
    for row in run_cases(args, workload):
        rows.append(row)
        print(COLUMNS.format(row.varied, row.requests, row.tokens, row.seen, row.result),
              flush=True)  # fmt: skip
    bad = [row for row in rows if not row.is_good]
    print(f"\n{_verdict(rows, bad)}")
    if settings.json:
        write_json(settings.json, _report(config.model.model, settings, rows))
    return 1 if bad else 0


def run_cases(args: EngineArgs, workload: Workload) -> Iterator[Row]:
    """Run all cases, each in an engine of its own; the rows as they come."""
    reference: list[Answer] | None = None
    kinds = [subject.kind for subject in workload.subjects]
    for case in make_cases(workload):
        started = time.perf_counter()
        with open_session(args, case.options) as session:
            answers, evidence = case.run(session, workload)
        difference = None
        if reference is None:
            reference = answers
            result = _reference_result(kinds, answers, evidence)
        else:
            difference = first_difference(kinds, reference, answers)
            result = str(difference) if difference else _result(evidence)
        yield Row(
            case.name,
            len(answers),
            sum(len(answer.token_ids) for answer in answers),
            evidence.words,
            result,
            difference,
            time.perf_counter() - started,
        )


def _result(evidence: Evidence, good: str = IDENTICAL) -> str:
    return good if evidence.is_exercised else NOT_EXERCISED


def _reference_result(kinds: list[str], answers: list[Answer], evidence: Evidence) -> str:
    """The reference is compared with nothing, but its requests must have been answered."""
    for i, (kind, answer) in enumerate(zip(kinds, answers, strict=True)):
        if answer.failure is not None:
            return f"failed at request {i} ({kind}): {answer.failure}"
    return _result(evidence, REFERENCE)


def _asked(settings: VerifySettings) -> str:
    return (
        f"{settings.num_prompts} prompts of up to {settings.input_len} tokens, each asked "
        f"greedily, with a seed ({settings.output_len} tokens each), and scored"
    )


def _verdict(rows: list[Row], bad: list[Row]) -> str:
    seconds = sum(row.seconds for row in rows)
    if bad:
        return f"{len(bad)} of {len(rows)} runs are not as they should be ({seconds:.0f} s)"
    return (
        f"all {len(rows)} runs gave the same tokens and log-probabilities, bit for bit "
        f"({seconds:.0f} s)"
    )


def _report(model: str, settings: VerifySettings, rows: list[Row]) -> dict[str, Any]:
    return {
        "about": about(model=model),
        "settings": asdict(settings),
        "identical": all(row.is_good for row in rows),
        "rows": [asdict(row) for row in rows],
    }
