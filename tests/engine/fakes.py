"""Fakes for the front half: an executor that counts upwards, and a config to run it with.

`make_executor` is found by import string in the core's process; `hf_config` says how it behaves.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from headrace.config.engine import (
    CacheConfig,
    EngineConfig,
    FrontConfig,
    ModelConfig,
    SchedulerConfig,
)
from headrace.errors import ConfigError, ModelError
from headrace.messages.outputs import TokenLogprobs
from headrace.messages.startup import EngineReady
from headrace.messages.step import ModelRunnerOutput, SchedulerOutput
from headrace.worker.executor import OnStage
from tests.waiting import PATIENCE, wait_until

FACTORY = "tests.engine.fakes:make_executor"
VOCAB_SIZE = 300
EOS = 256
"""The special token of the fake tokenizer, whose other ids are bytes."""
ENDLESS: dict[str, Any] = {"step_seconds": 0.01, "max_model_len": 100_000, "num_blocks": 7000}
"""Options of `make_config` with which a request for ENDLESS_TOKENS outlasts any test."""
ENDLESS_TOKENS = 90_000


class CountingExecutor:
    """The next token is the last one plus one, modulo `modulo` (default 256).

    Keys of `hf_config`: modulo; step_seconds: time of a step; raise_at_token: fail the step that
    would give it; fail_at_token: fail only that request; hang_at_token: never come back from the
    step, in native code that holds Python's lock; wait_at_token: come back when the file `go` is
    in the folder `gate`. Both make a file `here` in `gate`, if there is one.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.options = config.model.hf_config
        self.tokens: dict[str, list[int]] = {}
        self.params: dict[str, Any] = {}
        self.ready = EngineReady(
            max_model_len=config.model.max_model_len,
            num_blocks=config.cache.num_blocks_override or 64,
            block_size=config.cache.block_size,
            kv_cache_bytes=0,
            weight_bytes=0,
            isa="fake",
        )

    def execute(self, order: SchedulerOutput) -> ModelRunnerOutput:
        time.sleep(self.options.get("step_seconds", 0.0))
        result = ModelRunnerOutput({}, {}, {}, {})
        computed: dict[str, int] = {}
        for request_id in order.finished_ids:
            self.tokens.pop(request_id, None)
            self.params.pop(request_id, None)
        for new in order.new_requests:
            self.tokens[new.request_id] = list(new.token_ids)
            self.params[new.request_id] = new
            computed[new.request_id] = new.num_computed_tokens
        for cached in order.cached_requests:
            computed[cached.request_id] = cached.num_computed_tokens
        for request_id, count in order.num_scheduled_tokens.items():
            self._compute(request_id, computed[request_id], count, result)
        return result

    def _compute(self, request_id: str, start: int, count: int, result: ModelRunnerOutput) -> None:
        tokens, new = self.tokens[request_id], self.params[request_id]
        if new.sampling_params.prompt_logprobs is not None:
            stop = min(start + count + 1, new.num_prompt_tokens)
            result.prompt_logprobs[request_id] = [
                _logprobs(token, new.sampling_params.prompt_logprobs)
                for token in tokens[start + 1 : stop]
            ]
        if start + count < len(tokens):
            return
        token = (tokens[-1] + 1) % self.options.get("modulo", 256)
        if token == self.options.get("raise_at_token"):
            raise RuntimeError(f"no step gives {token}")
        if token == self.options.get("hang_at_token"):
            self._tell_here()
            ctypes.PyDLL(None).sleep(600)
        if token == self.options.get("wait_at_token"):
            self._tell_here()
            wait_until((Path(self.options["gate"]) / "go").exists)
        if token == self.options.get("fail_at_token"):
            result.errors[request_id] = f"no request gets {token}"
            return
        tokens.append(token)
        result.sampled_token_ids[request_id] = [token]
        if new.sampling_params.logprobs is not None:
            result.logprobs[request_id] = [_logprobs(token, new.sampling_params.logprobs)]

    def _tell_here(self) -> None:
        if "gate" in self.options:
            (Path(self.options["gate"]) / "here").touch()

    def release_kv_cache(self) -> None:
        pass

    def call_worker(self, method: str, args: Any, kwargs: Any) -> Any:
        return [method, list(args), kwargs]

    call_model = call_worker

    def shutdown(self) -> None:
        self.tokens.clear()


def _logprobs(token: int, count: int) -> TokenLogprobs:
    others = [(token + k) % 256 for k in range(count)]
    return TokenLogprobs([token, *others], [-0.5] + [-0.5 - k for k in range(count)], 1)


def make_executor(config: EngineConfig, on_stage: OnStage) -> CountingExecutor:
    """Keys of `hf_config` for the start: start_seconds, and start: how it fails."""
    options = config.model.hf_config
    on_stage("loading weights", 0.5)
    time.sleep(options.get("start_seconds", 0.0))
    match options.get("start"):
        case "model":
            raise ModelError("no weights\nin here")
        case "config":
            raise ConfigError("max_model_len must be less")
        case "fault":
            raise RuntimeError("out of luck")
        case "die":
            os.kill(os.getpid(), 9)
        case "leave":
            os._exit(7)
    return CountingExecutor(config)


def make_config(
    *,
    max_model_len: int = 200,
    num_blocks: int = 64,
    block_size: int = 16,
    scheduler: SchedulerConfig | None = None,
    front: FrontConfig | None = None,
    max_logprobs: int = 20,
    tokenizer: str | None = None,
    eos_token_ids: list[int] | None = None,
    **options: Any,
) -> EngineConfig:
    """A config for the fake executor; `options` go into `hf_config`."""
    return EngineConfig(
        model=ModelConfig(
            model="counting",
            path="counting",
            format="dummy",
            hf_config=options,
            model_type="counting",
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            vocab_size=VOCAB_SIZE,
            served_names=["counting"],
            eos_token_ids=[EOS] if eos_token_ids is None else eos_token_ids,
            max_logprobs=max_logprobs,
        ),
        cache=CacheConfig(block_size=block_size, num_blocks_override=num_blocks),
        scheduler=scheduler or SchedulerConfig(),
        front=front or FrontConfig(ready_timeout=2 * PATIENCE),
    )


def save_tokenizer(folder: Path) -> str:
    """A tokenizer whose ids are the bytes of the text, and EOS; its folder."""
    mark = pre_tokenizers.ByteLevel.alphabet()
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    assert set(letters.values()) == set(mark)
    vocabulary = {letters[byte]: byte for byte in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    return str(folder)
