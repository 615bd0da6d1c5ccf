"""Speed of the whole engine on one model, beside the limits of the machine in the same run.

    python benchmarks/engine_speed.py [MODEL] [--repeat 3]

Works: W1 128 prompts of 128 random tokens, 128 out; W2 one stream, 32 in, 256 out; W3 8 prompts of
1,024 tokens, 1 out. Prints medians, and for W2 the share of the limit that streaming the weights
from memory sets. Machines are noisy: compare figures of one run only.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from os import sched_getaffinity

import numpy as np

from headrace import LLM, SamplingParams


def prompts(count: int, length: int, vocab_size: int, seed: int) -> list[dict[str, list[int]]]:
    rng = random.Random(seed)
    return [
        {"prompt_token_ids": [rng.randrange(10, vocab_size - 10) for _ in range(length)]}
        for _ in range(count)
    ]


def streaming_limit(num_bytes: int = 1 << 29) -> float:
    """Bytes per second that all cores together read from memory (numpy sums on threads)."""
    threads = len(sched_getaffinity(0))
    parts = np.array_split(np.ones(num_bytes // 8), threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            best = max(best, num_bytes / (time.perf_counter() - start))
    return best


def timed(llm: LLM, batch: list[dict[str, list[int]]], max_tokens: int) -> float:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    start = time.perf_counter()
    llm.generate(batch, params, use_tqdm=False)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    start = time.perf_counter()
    llm = LLM(args.model, max_model_len=2048, enable_prefix_caching=False)
    timed(llm, prompts(1, 8, 1000, 0), 1)
    first_token = time.perf_counter() - start
    vocab = llm.model_config.vocab_size
    rows = []
    for name, count, length, out in (("W1", 128, 128, 128), ("W2", 1, 32, 256), ("W3", 8, 1024, 1)):
        times = [timed(llm, prompts(count, length, vocab, i), out) for i in range(args.repeat)]
        tokens = count * (length if name == "W3" else out)
        rows.append((name, tokens / statistics.median(times), tokens / max(times)))
    llm.shutdown()
    bandwidth = streaming_limit()
    print(f"model {llm.model_config.model}; LLM() to first token {first_token:.2f} s")
    print(f"memory streaming {bandwidth / 1e9:.1f} GB/s")
    for name, median, worst in rows:
        print(f"{name}  {median:10,.1f} tokens/s (median)  {worst:10,.1f} (worst)")


if __name__ == "__main__":
    main()
