"""Client packages in their newest versions against a real server: `make clients`.

    python tests/clients/run.py --python ENVIRONMENT/bin/python --node FOLDER

The environment has the packages of Python, the folder those of JavaScript (node_modules).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.hostile.server import victim  # noqa: E402

PYTHON = ("openai", "langchain-openai", "litellm", "instructor", "openai-agents")
NODE = ("openai", "ai")
TOOL_MODEL = "qwen2.5-coder-0.5b-instruct-gguf"
PATIENCE = 300


def main() -> int:
    """Run all conversations; 0 when all went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", help="a Python with the packages")
    parser.add_argument("--node", type=Path, help="a folder with node_modules")
    options = parser.parse_args()
    packages = str((options.node or HERE).resolve())
    models = Path(os.environ.get("HEADRACE_TEST_MODELS") or "~/.cache/headrace-models")
    failed = []
    # The packaged model talks; one that knows tools calls them.
    for topic, model in (("talk", ()), ("tools", (str(models.expanduser() / TOOL_MODEL),))):
        with victim(*model, "--max-model-len", "2048", "--max-num-seqs", "32") as server:
            for name, command in conversations(options.python, options.node, topic).items():
                if not goes_well(name, command, server.url, packages):
                    failed.append(name)
    return bool(failed)


def conversations(python: str | None, node: Path | None, topic: str) -> dict[str, list[str]]:
    """The commands of a topic by the name they are told under."""
    commands: dict[str, list[str]] = {}
    if python is not None:
        script = str(HERE / "conversations.py")
        commands |= {f"{n} (Python), {topic}": [python, script, n, topic] for n in PYTHON}
    if node is not None:
        script = str(HERE / "conversations.mjs")
        commands |= {f"{n} (node), {topic}": ["node", script, n, topic] for n in NODE}
    return commands


def goes_well(name: str, command: list[str], url: str, packages: str) -> bool:
    """Run one conversation with a server, and say how it went."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        model = json.load(answer)["data"][0]["id"]
    told = {"BASE_URL": f"{url}/v1", "MODEL": model, "PACKAGES": packages}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | told
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    print(f"{name}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
    if done.returncode:
        print(done.stderr[-3000:])
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
