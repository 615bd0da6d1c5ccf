"""Embeddings in the core: checked again, kept over preemptions, shared by content."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from headrace.config.engine import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from headrace.core.engine_core import EngineCore
from headrace.core.kv_cache import KVCacheManager
from headrace.inputs import PromptEmbeds
from headrace.messages.outputs import FinishReason
from headrace.messages.requests import CoreInput, EngineCoreRequest
from headrace.messages.step import NewRequest
from tests.fakes import RecordingExecutor, make_core_request


def make_core(executor: RecordingExecutor, *, takes_embeds: bool = True) -> EngineCore:
    model = ModelConfig(
        model="m", path="m", format="dummy", hf_config={}, model_type="m", tokenizer=None,
        max_model_len=64, vocab_size=1000, served_names=["m"], enable_prompt_embeds=takes_embeds,
    )  # fmt: skip
    return EngineCore(
        EngineConfig(
            model=model,
            cache=CacheConfig(block_size=4),
            scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16),
        ),
        executor,
    )


def embeds(num_tokens: int, seed: int = 0, width: int = 2) -> PromptEmbeds:
    rows = np.random.default_rng(seed).random((num_tokens, width), np.float32)
    return PromptEmbeds(num_tokens, width, rows.tobytes())


def request(
    request_id: str, given: PromptEmbeds, max_tokens: int = 4, **params: int
) -> EngineCoreRequest:
    source = make_core_request(request_id, [0] * given.num_tokens, max_tokens=max_tokens, **params)
    return msgspec.structs.replace(source, prompt_embeds=given)


def run(core: EngineCore) -> dict[str, str]:
    """Request -> why it failed, of those that did."""
    errors: dict[str, str] = {}
    while core.has_work():
        for output in core.step().outputs:
            if output.finish_reason is FinishReason.ERROR:
                errors[output.request_id] = output.error or ""
    return errors


def test_embeddings_cross_the_process_line_as_they_are() -> None:
    sent = request("a", embeds(3))
    got = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=CoreInput)
    assert got == sent


def test_the_worker_gets_them_again_after_a_preemption() -> None:
    executor = RecordingExecutor(num_blocks=7, max_model_len=20)
    core = make_core(executor)
    given = {"a": embeds(8, 1), "b": embeds(8, 2)}
    for request_id, one in given.items():
        core.add_request(request(request_id, one, 11))
    assert run(core) == {}
    started = [new for order in executor.orders for new in order.new_requests]
    assert [new.request_id for new in started].count("b") > 1
    assert all(new.prompt_embeds == given[new.request_id] for new in started)
    assert isinstance(started[0], NewRequest)


def digests(given: PromptEmbeds | None, salt: str | None = None) -> list[bytes]:
    chain = KVCacheManager(8, 4, True).make_chain(salt, given)
    assert chain is not None
    return chain.extend([0] * 8, 2)


def test_blocks_are_shared_by_equal_embeddings_and_by_no_tokens() -> None:
    same = [digests(embeds(8)), digests(embeds(8))]
    assert same[0] == same[1]
    others = [digests(embeds(8, 1)), digests(None), digests(embeds(8), "salt")]
    blocks = [block for chain in [same[0], *others] for block in chain]
    assert len(set(blocks)) == len(blocks)
    assert KVCacheManager(8, 4, False).make_chain(None, embeds(8)) is None


BAD = {
    "rows": (request("bad", embeds(3)), "for 2 tokens"),
    "bytes": (request("bad", PromptEmbeds(2, 2, bytes(15))), "but have 15 bytes"),
    "scored": (request("bad", embeds(2), prompt_logprobs=1), "prompt_logprobs"),
}
BAD["rows"] = (msgspec.structs.replace(BAD["rows"][0], prompt_token_ids=[0, 0]), BAD["rows"][1])


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_answered_with_an_error(name: str) -> None:
    source, said = BAD[name]
    executor = RecordingExecutor()
    core = make_core(executor)
    core.add_request(source)
    core.add_request(request("fine", embeds(3)))
    errors = run(core)
    assert list(errors) == ["bad"]
    assert said in errors["bad"]


def test_a_core_that_takes_none_says_so() -> None:
    core = make_core(RecordingExecutor(), takes_embeds=False)
    core.add_request(request("a", embeds(3)))
    assert "takes no prompt_embeds" in run(core)["a"]
