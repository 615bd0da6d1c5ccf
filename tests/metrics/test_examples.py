"""The dashboard and the rules in examples/ name metrics and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from headrace.messages.outputs import SchedulerStats
from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.metrics.stats import IterationStats
from tests.server.fakes import make_config

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
METRIC = re.compile(r"\b(?:headrace:|http_)[a-z_0-9:]+")
LABELS = re.compile(r"(headrace:[a-z_0-9]+|http_[a-z_0-9]+)\{([^}]*)\}|by \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "prometheus_rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    dashboard = json.loads((FOLDER / "grafana_dashboard.json").read_text())
    shown = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    asked = [one["query"]["query"] for one in dashboard["templating"]["list"]
             if isinstance(one["query"], dict)]  # fmt: skip
    return shown + asked + [rule["expr"] for rule in rules()]


@pytest.fixture(scope="module")
def samples() -> dict[str, set[str]]:
    """Names of all samples -> their labels, once everything has happened."""
    config = make_config()
    cache = msgspec.structs.replace(config.cache, kv_cache_metrics_sample=0.01)
    logger = PrometheusStatLogger(msgspec.structs.replace(config, cache=cache))
    logger.record(SchedulerStats(), IterationStats())
    logger.count_rejection("max_num_queued_reqs")
    logger.http.record("GET", "/x", 200, 0.1, 1, 1)
    logger.keys.record("alice", 1, 1)
    logger.keys.count_rejection("alice", "key_max_num_reqs")
    with logger.sleep.operation("sleep"):
        pass
    found: dict[str, set[str]] = {}
    for metric in logger.registry.collect():
        for sample in metric.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_metric_that_is_named_exists(samples: dict[str, set[str]]) -> None:
    known = set(samples) | {rule["record"] for rule in rules() if "record" in rule}
    named = {name for text in expressions() for name in METRIC.findall(text)}
    assert len(named) > 15
    assert named <= known


def test_every_label_that_is_named_exists(samples: dict[str, set[str]]) -> None:
    num_checked = 0
    for text in expressions():
        names = [name for name in METRIC.findall(text) if name in samples]
        there = set().union(*(samples[name] for name in names))
        for _, matchers, grouping in LABELS.findall(text):
            given = re.findall(r"([a-z_]+)[=!~]", matchers) if matchers else grouping.split(",")
            labels = {label.strip() for label in given}
            num_checked += len(labels)
            assert labels <= there | {"le"}, text
    assert num_checked > 20


def test_labels_in_texts_of_alerts_are_those_of_their_expressions() -> None:
    for rule in rules():
        for text in rule.get("annotations", {}).values():
            for label in re.findall(r"\$labels\.([a-z_]+)", text):
                assert label in rule["expr"], rule["alert"]


def test_panels_do_not_lie_on_each_other() -> None:
    panels = json.loads((FOLDER / "grafana_dashboard.json").read_text())["panels"]
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not mine & cells, panel["title"]
        cells |= mine
    assert len({panel["id"] for panel in panels}) == len(panels)
