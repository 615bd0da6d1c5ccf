"""Keys of a file: what is read, what each may do, and that no key is ever told."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.errors import ConfigError
from headrace.server.access.keys import KeyRing, read_key_file
from headrace.server.watch import watch_files
from tests.server.conftest import check_error
from tests.server.fakes import FakeEngine
from tests.waiting import PATIENCE

ClientOf = Callable[..., httpx.AsyncClient]
SECRET = "sk-very-secret"


def write(path: Path, *keys: dict[str, Any]) -> str:
    path.write_text(json.dumps({"keys": list(keys)}))
    return str(path)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_file_gives_names_scopes_and_limits_and_may_hold_digests(tmp_path: Path) -> None:
    path = write(
        tmp_path / "keys.json",
        {"name": "alice", "key": SECRET, "limits": {"max_num_reqs": 3}},
        {
            "name": "bob",
            "sha256": hashlib.sha256(b"bobs").hexdigest().upper(),
            "scopes": ["admin", "metrics"],
        },
    )
    ring = KeyRing(["plain"], path)
    alice, bob, plain = (ring.find(key) for key in (SECRET.encode(), b"bobs", b" plain"))
    assert alice is not None
    assert bob is not None
    assert plain is not None
    assert (alice.name, alice.scopes, alice.limits.max_num_reqs) == ("alice", {"infer"}, 3)
    assert (bob.name, bob.scopes) == ("bob", {"admin", "metrics"})
    assert (plain.name, plain.scopes) == ("api-key-1", {"infer", "admin", "metrics"})
    assert ring.find(b"sk-very-secre") is None
    assert SECRET not in repr(alice)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("x", "malformed"),
        ("[]", "Expected `object`"),
        ('{"keys": []}', "no key"),
        ('{"keys": {"' + SECRET + '": 1}}', "Expected `array`"),
        ('{"keys": [{"name": "a", "' + SECRET + '": 1}]}', "unknown field"),
        ('{"keys": [{"name": "a", "key": "k", "scopes": ["' + SECRET + '"]}]}', "enum value"),
        ('{"keys": [{"name": "a"}]}', "either key or sha256"),
        ('{"keys": [{"name": "a", "key": "k", "sha256": "k"}]}', "either key or sha256"),
        ('{"keys": [{"name": "a", "key": " "}]}', "must not be empty"),
        ('{"keys": [{"name": "a", "sha256": "12"}]}', "64 hexadecimal"),
        ('{"keys": [{"name": "a b", "key": "k"}]}', "keys[0].name"),
        ('{"keys": [{"name": "' + SECRET + '/+=", "key": "k"}]}', "keys[0].name"),
        ('{"keys": [{"name": "a", "key": "k"}, {"name": "a", "key": "l"}]}', "the same name"),
        ('{"keys": [{"name": "a", "key": "k"}, {"name": "b", "key": "k"}]}', "the same key"),
        ('{"keys": [{"name": "a", "key": "k", "limits": {"max_num_reqs": -1}}]}', "negative"),
    ],
)  # fmt: skip
def test_bad_file_is_one_line_that_tells_no_key(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_key_file(path)
    assert told in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_a_key_given_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_key_file(tmp_path / "none.json")
    path = write(tmp_path / "keys.json", {"name": "a", "key": SECRET})
    with pytest.raises(ConfigError, match="api-key-1 of --api-key is in the key file") as caught:
        KeyRing([SECRET], path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("scopes", "models", "metrics"),
    [(["infer"], 200, 403), (["metrics"], 403, 200), (["admin"], 403, 403), ([], 403, 403)],
)
async def test_a_key_may_use_what_its_scopes_say(
    engine: FakeEngine,
    client_of: ClientOf,
    tmp_path: Path,
    scopes: list[str],
    models: int,
    metrics: int,
) -> None:
    path = write(tmp_path / "keys.json", {"name": "alice", "key": SECRET, "scopes": scopes})
    client = client_of(engine, api_key_file=path)
    for route, status in (("/v1/models", models), ("/metrics", metrics), ("/health", 200)):
        answer = await client.get(route, headers=bearer(SECRET))
        assert answer.status_code == status, route
        if status == 403:
            error = check_error(answer, 403)
            assert error["type"] == "PermissionDeniedError"
            assert "'alice'" in error["message"]
    check_error(await client.get("/v1/models"), 401)


async def test_key_file_wins_over_the_environment(
    engine: FakeEngine, client_of: ClientOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", "from-outside")
    path = write(tmp_path / "keys.json", {"name": "alice", "key": SECRET})
    client = client_of(engine, api_key_file=path)
    check_error(await client.get("/v1/models", headers=bearer("from-outside")), 401)


async def test_changed_file_is_read_again_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    path = tmp_path / "keys.json"
    ring = KeyRing([], write(path, {"name": "alice", "key": "a"}, {"name": "bob", "key": "b"}))
    reloads = asyncio.Semaphore(0)

    def reload() -> None:
        ring.reload()
        reloads.release()

    watching = asyncio.create_task(watch_files([path], reload, seconds=0.01))
    try:
        await asyncio.sleep(0.05)
        new = tmp_path / "new.json"
        new.write_text("{")
        os.replace(new, path)  # as a whole: two looks at a file being written are two changes
        await asyncio.wait_for(reloads.acquire(), PATIENCE)
        assert ring.find(b"a") is not None
        assert "the keys stay as they were" in caplog.text
        caplog.clear()
        write(new, {"name": "alice", "key": "a2"}, {"name": "carol", "key": SECRET})
        os.replace(new, path)
        await asyncio.wait_for(reloads.acquire(), PATIENCE)
        found = [ring.find(key) for key in (b"a", b"b", b"a2", SECRET.encode())]
        assert [key and key.name for key in found] == [None, None, "alice", "carol"]
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert "new: carol; gone: bob; changed: alice" in caplog.text
    assert SECRET not in caplog.text
