"""Several engines side by side, each in a process of its own with a share of the prompts.

python examples/data_parallel.py --engines 2
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from headrace import LLM, SamplingParams

PROMPTS = [f"Question {i}: what is {i} plus {i}? Answer:" for i in range(8)]


def run_share(rank: int, count: int) -> None:
    """Answer every count-th prompt, beginning with number `rank`."""
    threads = max(1, (os.cpu_count() or 1) // count)
    params = SamplingParams(temperature=0, max_tokens=16)
    with LLM(num_threads=threads, kv_cache_memory_bytes=64 << 20) as llm:
        for output in llm.generate(PROMPTS[rank::count], params, use_tqdm=False):
            print(f"[engine {rank}] {output.prompt}{output.outputs[0].text!r}", flush=True)


def main() -> int:
    """Start the engines and wait for them; the worst of their exit statuses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--rank", type=int, help="used between the processes")
    options = parser.parse_args()
    if options.rank is not None:
        run_share(options.rank, options.engines)
        return 0
    command = [sys.executable, __file__, "--engines", str(options.engines), "--rank"]
    children = [subprocess.Popen([*command, str(rank)]) for rank in range(options.engines)]
    return max(child.wait() for child in children)


if __name__ == "__main__":
    sys.exit(main())
