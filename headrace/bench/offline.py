"""What the offline benchmarks share: a quiet model, its vocabulary, the machine beside it."""

from __future__ import annotations

from headrace.bench.datasets import BenchRequest, Vocabulary
from headrace.bench.limits import MachineLimits
from headrace.bench.report import Row
from headrace.bench.settings import given_options
from headrace.config.args import EngineArgs
from headrace.errors import ConfigError
from headrace.inputs import PromptType
from headrace.llm import LLM
from headrace.sampling_params import SamplingParams


def make_llm(args: EngineArgs) -> LLM:
    """The offline class with its own defaults."""
    return LLM(**given_options(args))


def vocabulary_of(llm: LLM, *, has_tokenizer: bool) -> Vocabulary:
    """Tokens for random prompts: none special, none that ends an answer."""
    model = llm.model_config
    tokenizer = llm.llm_engine.tokenizer if has_tokenizer else None
    return Vocabulary(tokenizer, model.vocab_size, frozenset(model.eos_token_ids))


def prompts_of(requests: list[BenchRequest]) -> list[PromptType]:
    """As LLM.generate takes them."""
    return [
        request.prompt if isinstance(request.prompt, str) else {"prompt_token_ids": request.prompt}
        for request in requests
    ]


def params_of(
    requests: list[BenchRequest], temperature: float, *, ignore_eos: bool = True
) -> list[SamplingParams]:
    """One for each request."""
    return [
        SamplingParams(
            temperature=temperature, max_tokens=request.output_len, ignore_eos=ignore_eos
        )
        for request in requests
    ]


def check_lengths(requests: list[BenchRequest], max_model_len: int) -> None:
    """Refuse a run of which a request cannot be answered.

    Raises:
        ConfigError: names the longest request and the limit.
    """
    longest = max((request.num_prompt_tokens or 1) + request.output_len for request in requests)
    if longest > max_model_len:
        raise ConfigError(
            f"a prompt and its answer take up to {longest} tokens, the context holds "
            f"{max_model_len}: ask for fewer (--input-len, --output-len) or raise --max-model-len"
        )


def warm_up(llm: LLM) -> None:
    """Touch every weight once."""
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    llm.generate({"prompt_token_ids": [0]}, params, use_tqdm=False)


def streaming_rows(
    weight_bytes: int, num_steps: int, seconds: float, limits: MachineLimits
) -> list[Row]:
    """How near steps that each read all weights once come to the speed of the memory.

    Of a single step nothing is said: it is prefill, which arithmetic limits.
    """
    if num_steps < 2:
        return []
    rate = weight_bytes * num_steps / seconds
    share = rate / limits.read_bytes_per_second
    return [("Weights, read once a step", f"{rate / 1e9:,.1f} GB/s = {share:.0%}")]
