"""What speculative decoding saves on answers that repeat their prompt, and costs on others.

Each answer is generated with and without guesses in turns; the two must be equal, token for token.
Prints the time per token, the best of all turns. A model that follows instructions is best.

Usage: python benchmarks/speculation.py MODEL [--tokens 160] [--turns 3] [--batch-sizes 1 4]
       [--speculative-config JSON] [--quantization int8]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from headrace import LLM, RequestOutput, SamplingParams

CODE = Path(__file__).with_name("scheduler_growth.py").read_text().partition("def step_time")[0]
TASKS = {
    "copy code": f"Write this file once more, unchanged:\n\n```python\n{CODE}```",
    "rename in code": (
        f"Write this file once more, with `Scheduler` renamed to `Planner`:\n\n```python\n{CODE}```"
    ),
    "summarise code": f"Say in plain words what this file does:\n\n```python\n{CODE}```",
    "write a story": "Write a long story about a lighthouse, a storm and a dog.",
}
SAMPLING = {
    "greedy": SamplingParams(temperature=0, ignore_eos=True),
    "drawn": SamplingParams(temperature=0.8, seed=7, ignore_eos=True),
}
SPECULATIVE = {"method": "ngram", "num_speculative_tokens": 7}


@dataclass
class Turn:
    """One batch of one engine."""

    token_ids: list[list[int]]
    milliseconds: float
    """Per step of one token for each request, as if every step gave one."""
    num_guessed: int
    num_right: int


def run(llm: LLM, prompt: str, sampling: SamplingParams, batch_size: int) -> Turn:
    """Answer one prompt in some copies at once, whose prefixes differ: nothing is shared."""
    chats = [[{"role": "user", "content": f"({i}) {prompt}"}] for i in range(batch_size)]
    outputs = llm.chat(chats, sampling, use_tqdm=False)
    return summary(outputs)


def summary(outputs: list[RequestOutput]) -> Turn:
    """The time from the last first token to the end, by the tokens that came in it."""
    ledgers = [output.metrics for output in outputs if output.metrics is not None]
    decode_times = [one.decode_time for one in ledgers if one.decode_time is not None]
    token_ids = [output.outputs[0].token_ids for output in outputs]
    num_steps = max(len(ids) for ids in token_ids) - 1
    return Turn(
        token_ids,
        1000 * max(decode_times) / num_steps,
        sum(one.num_draft_tokens for one in ledgers),
        sum(one.num_accepted_tokens for one in ledgers),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--sampling", nargs="+", choices=SAMPLING, default=["greedy"])
    parser.add_argument("--speculative-config", type=json.loads, default=SPECULATIVE)
    parser.add_argument("--quantization", choices=("int8",))
    args = parser.parse_args()
    options = {"max_model_len": 2048, "max_num_seqs": 16, "kv_cache_memory_bytes": 512 << 20,
               "quantization": args.quantization, "disable_log_stats": False}  # fmt: skip
    with (
        LLM(args.model, **options) as plain,
        LLM(args.model, **options, speculative_config=args.speculative_config) as guessing,
    ):
        print(f"{args.model}, {json.dumps(args.speculative_config)}")
        print(f"{'task':<16} {'sampling':<8} {'batch':>5} {'plain':>9} {'guessing':>9} "
              f"{'faster':>7} {'guessed':>8} {'right':>6}")  # fmt: skip
        for llm in (plain, guessing):  # the first answers of an engine are slow
            run(llm, "Hello", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), 1)
        for task in args.tasks:
            for name in args.sampling:
                sampling = SAMPLING[name].clone()
                sampling.max_tokens = args.tokens
                for batch_size in args.batch_sizes:
                    print(f"{task:<16} {name:<8} {batch_size:>5} ", end="", flush=True)
                    pairs = [
                        (
                            run(plain, TASKS[task], sampling, batch_size),
                            run(guessing, TASKS[task], sampling, batch_size),
                        )
                        for _ in range(args.turns)
                    ]
                    print(line(pairs), flush=True)


def line(pairs: list[tuple[Turn, Turn]]) -> str:
    """The figures of one row; raises when an answer differs."""
    if any(one.token_ids != two.token_ids for one, two in pairs):
        raise SystemExit("the answers with and without guesses differ")
    before = min(one.milliseconds for one, _ in pairs)
    after = min(two.milliseconds for _, two in pairs)
    last = pairs[-1][1]
    share = f"{last.num_right / last.num_guessed:6.0%}" if last.num_guessed else f"{'-':>6}"
    return (
        f"{before:>6.2f} ms {after:>6.2f} ms {before / after:>6.2f}x {last.num_guessed:>8} {share}"
    )


if __name__ == "__main__":
    main()
