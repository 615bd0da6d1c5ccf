"""What grammars cost: steps of a batch in which every request follows one, against plain steps.

    python benchmarks/grammars.py [model] [--batch 32] [--rounds 5]

Runs the same batch with and without a JSON schema, in turn, in one engine, and prints the ratio of
the best times per token. Both write the same number of tokens: the schema asks for a long list.
"""

from __future__ import annotations

import argparse
import time

from headrace import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "kind": {"enum": ["plant", "animal", "mineral"]},
            "size": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        },
        "required": ["name", "kind", "size", "tags"],
        "additionalProperties": False,
    },
    "minItems": 50,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    prompts = [f"List {i + 3} things you know as JSON:" for i in range(options.batch)]
    grammar = StructuredOutputsParams(json=SCHEMA)
    best = {"plain": float("inf"), "grammar": float("inf")}
    with LLM(options.model, max_model_len=1024, max_num_seqs=options.batch) as llm:
        for number in range(options.rounds + 1):
            for name in best:
                params = SamplingParams(
                    max_tokens=options.tokens, ignore_eos=True, temperature=1.0, seed=number,
                    structured_outputs=grammar if name == "grammar" else None,
                )  # fmt: skip
                started = time.perf_counter()
                outputs = llm.generate(prompts, params, use_tqdm=False)
                took = time.perf_counter() - started
                num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
                assert num_tokens == options.batch * options.tokens
                if number:  # the first round loads, compiles and fills caches
                    best[name] = min(best[name], took / num_tokens)
    for name, seconds in best.items():
        print(f"{name:8} {1e3 * seconds * options.batch:8.2f} ms per step of {options.batch}")
    print(f"ratio    {best['grammar'] / best['plain']:8.3f}")


if __name__ == "__main__":
    main()
