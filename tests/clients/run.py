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
PATIENCE = 300


def main() -> int:
    """Run all conversations; 0 when all went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", help="a Python with the packages")
    parser.add_argument("--node", type=Path, help="a folder with node_modules")
    options = parser.parse_args()
    commands: dict[str, list[str]] = {}
    if options.python is not None:
        script = str(HERE / "conversations.py")
        commands |= {f"{name} (Python)": [options.python, script, name] for name in PYTHON}
    if options.node is not None:
        script = str(HERE / "conversations.mjs")
        commands |= {f"{name} (node)": ["node", script, name] for name in NODE}
    failed = []
    with victim("--max-model-len", "2048", "--max-num-seqs", "32") as server:
        with urllib.request.urlopen(f"{server.url}/v1/models", timeout=30) as answer:
            model = json.load(answer)["data"][0]["id"]
        told = {"BASE_URL": f"{server.url}/v1", "MODEL": model,
                "PACKAGES": str((options.node or HERE).resolve())}  # fmt: skip
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | told
        for name, command in commands.items():
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=PATIENCE,
                check=False,
            )  # fmt: skip
            print(f"{name}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
            if done.returncode:
                failed.append(name)
                print(done.stderr[-3000:])
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
