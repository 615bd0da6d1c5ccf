"""What the documents for operators name is there: flags, routes, files."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.cli.options import options_of
from headrace.config.args import AsyncEngineArgs
from headrace.server.routes.admin import ROUTES as ADMIN_ROUTES
from headrace.server.routes.table import ROUTES
from headrace.server.settings.server import ServerSettings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "operations.md").read_text()


def test_every_flag_exists() -> None:
    known = {option.flag for option in options_of(AsyncEngineArgs, ServerSettings)} | {"--help"}
    known |= {f"--no-{option.flag[2:]}" for option in options_of(ServerSettings)}
    named = set(re.findall(r"--[a-z][a-z-]+", TEXT))
    assert len(named) > 25
    assert named <= known


def test_every_route_exists() -> None:
    known = {path for _, path, _, _ in ROUTES + ADMIN_ROUTES}
    named = set(re.findall(r"(?:GET|POST|DELETE) ((?:/[a-z_0-9]+|/\{[a-z_]+\})+)", TEXT))
    named |= set(re.findall(r"`(/[a-z]+)`", TEXT))
    assert len(named) > 15
    assert {re.sub(r"\{[a-z_]+\}", "{}", path) for path in named} <= {
        re.sub(r"\{[a-z_:]+\}", "{}", path) for path in known
    }


def test_every_admin_route_is_documented() -> None:
    assert all(path in TEXT for _, path, _, _ in ADMIN_ROUTES)


def test_every_path_exists() -> None:
    for path in re.findall(r"`(examples/[a-z_/.]+)`", TEXT):
        assert (ROOT / path).exists(), path
