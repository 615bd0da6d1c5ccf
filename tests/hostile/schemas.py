"""Schemathesis over /openapi.json: requests made from the document, sound and unsound ones. No 5xx,
no hang, and every answer as the document says.

    python tests/hostile/schemas.py --schemathesis .venv/bin/schemathesis --seconds 180
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.hostile.server import victim

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_headers_conformance", "response_schema_conformance", "unsupported_method",
)  # fmt: skip
"""Not those about which requests are refused: a schema cannot say all that is checked."""


def main() -> int:
    """Run it; 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemathesis", default="schemathesis")
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # Short answers, so that much is asked in the time.
    short = ("--max-model-len", "256", "--override-generation-config", '{"max_tokens": 4}')
    with victim("--enable-tokenizer-info-endpoint", *short) as server:
        found = subprocess.run(
            [options.schemathesis, "run", f"{server.url}/openapi.json",
             "--checks", ",".join(CHECKS), "--max-time", str(options.seconds),
             "--seed", str(options.seed), "--request-timeout", "60", "--workers", "2",
             "--continue-on-failure", "--max-failures", "20", "--suppress-health-check", "all"],
            check=False,
        )  # fmt: skip
        left = server.wait_until_idle()
        healthy = server.is_healthy()
    print(f"left: {left}; healthy: {healthy}")
    return int(bool(found.returncode or any(left.values()) or not healthy))


if __name__ == "__main__":
    sys.exit(main())
