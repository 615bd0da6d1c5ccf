"""The offline class, method by method, as programs of this field know it."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace import LLM, BeamSearchParams, LoRARequest, RequestOutput, SamplingParams
from headrace.errors import ConfigError, UnsupportedError, ValidationError
from headrace.inputs import ChatMessage

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}
PROMPT = "The capital of France is"
ENGLISH: list[ChatMessage] = [{"role": "user", "content": "Say yes."}]
SIGNATURES = {
    "generate": "prompts sampling_params=None * use_tqdm=True lora_request=None priority=None "
    "tokenization_kwargs=None mm_processor_kwargs=None",
    "chat": "messages sampling_params=None use_tqdm=True lora_request=None priority=None "
    "chat_template=None chat_template_content_format='auto' add_generation_prompt=True "
    "continue_final_message=False tools=None chat_template_kwargs=None tokenization_kwargs=None "
    "mm_processor_kwargs=None",
    "enqueue": "prompts sampling_params=None lora_request=None priority=None use_tqdm=True "
    "tokenization_kwargs=None mm_processor_kwargs=None",
    "wait_for_completion": "output_type=None * use_tqdm=True",
    "beam_search": "prompts params lora_request=None use_tqdm=False concurrency_limit=None",
    "get_tokenizer": "",
    "get_default_sampling_params": "",
    "get_world_size": "include_dp=True",
    "collective_rpc": "method timeout=None args=() kwargs=None",
    "apply_model": "func",
    "start_profile": "profile_prefix=None * delay_iterations=None max_iterations=None",
    "stop_profile": "",
    "reset_mm_cache": "",
    "reset_prefix_cache": "reset_running_requests=False reset_connector=False",
    "sleep": "level=1 mode='abort'",
    "wake_up": "tags=None",
    "release_kv_cache_memory": "",
    "get_metrics": "",
}
SIGNATURES["enqueue_chat"] = SIGNATURES["chat"]


def params(**values: Any) -> SamplingParams:
    return SamplingParams(**{**GREEDY, **values})


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_method_takes_the_known_arguments_in_their_order(name: str) -> None:
    found: list[str] = []
    for one in list(inspect.signature(getattr(LLM, name)).parameters.values())[1:]:
        if one.kind is one.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        found.append(one.name if one.default is one.empty else f"{one.name}={one.default!r}")
    assert found == SIGNATURES[name].split()


def test_constructor_takes_only_the_model_by_position() -> None:
    with pytest.raises(TypeError):
        LLM("a", "b")  # type: ignore[misc]


# generate


def test_every_form_of_a_prompt_gives_the_same_answer(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(PROMPT)
    forms = [
        PROMPT, {"prompt": PROMPT}, {"prompt_token_ids": ids}, ids, np.array(ids),
        torch.tensor(ids), [np.int64(i) for i in ids], {"prompt_token_ids": np.array(ids)},
        {"prompt_token_ids": torch.tensor(ids), "prompt": PROMPT},
    ]  # fmt: skip
    answers = {texts(llm.generate(one, params(), use_tqdm=False))[0] for one in forms}  # type: ignore[arg-type]
    assert len(answers) == 1
    batch = llm.generate(np.array([ids, ids]), params(), use_tqdm=False)  # type: ignore[arg-type]
    assert set(texts(batch)) == answers
    assert llm.generate([], params(), use_tqdm=False) == []


def test_outputs_come_in_the_order_of_the_prompts_and_with_their_forms(llm: LLM) -> None:
    limits = [5, 1, 3]
    outputs = llm.generate(
        ["a b", "c d", [1, 2]], [params(max_tokens=n, ignore_eos=True) for n in limits],
        use_tqdm=False,
    )  # fmt: skip
    assert [len(one.outputs[0].token_ids) for one in outputs] == limits
    assert [one.prompt for one in outputs] == ["a b", "c d", None]
    ids = [int(one.request_id) for one in outputs]
    assert ids == sorted(ids)
    assert all(one.finished and one.outputs[0].finished() for one in outputs)


def test_output_kind_becomes_final_only_on_the_callers_object(llm: LLM) -> None:
    mine = params(output_kind=headrace.RequestOutputKind.DELTA)
    llm.generate(PROMPT, mine, use_tqdm=False)
    assert mine.output_kind is headrace.RequestOutputKind.FINAL_ONLY


@pytest.mark.parametrize(
    "options",
    [{"sampling_params": [SamplingParams()]}, {"priority": [0]}, {"priority": [0, 0, 0]}],
    ids=repr,
)
def test_lists_of_another_length_are_refused(llm: LLM, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="must be the same"):
        llm.generate(["a", "b"], **options, use_tqdm=False)


LORA = LoRARequest("name", 1, "/nowhere")


@pytest.mark.parametrize(
    ("name", "value"),
    [("lora_request", LORA), ("lora_request", [LORA]), ("mm_processor_kwargs", {"a": 1}),
     ("tokenization_kwargs", {"padding": True})],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
@pytest.mark.parametrize("method", ["generate", "chat", "enqueue", "enqueue_chat"])
def test_option_that_is_not_offered_is_refused_by_name(
    llm: LLM, method: str, name: str, value: Any
) -> None:
    prompts: Any = ENGLISH if "chat" in method else PROMPT
    with pytest.raises(UnsupportedError, match=name):
        getattr(llm, method)(prompts, params(), use_tqdm=False, **{name: value})
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.generate(PROMPT, params(), use_tqdm=False, mm_processor_kwargs={})


def test_lora_requests_of_one_name_are_equal() -> None:
    assert LoRARequest("name", 2, "/elsewhere") == LORA
    assert len({LORA, LoRARequest("name", 2, "x"), LoRARequest("other", 1, "x")}) == 2
    for bad in (("", 1, "x"), ("a", 0, "x"), ("a", 1, "")):
        with pytest.raises(ValidationError):
            LoRARequest(*bad)


def test_tokenization_kwargs_cut_and_leave_out_marks(llm: LLM) -> None:
    whole = llm.get_tokenizer().encode(PROMPT)

    def ids(**kwargs: Any) -> list[int]:
        [output] = llm.generate(
            PROMPT, params(max_tokens=1), use_tqdm=False, tokenization_kwargs=kwargs
        )
        return output.prompt_token_ids

    assert ids() == whole
    assert ids(truncate_prompt_tokens=2) == whole[-2:]
    assert ids(truncate_prompt_tokens=2, truncation_side="right") == whole[:2]
    assert ids(truncation=True, max_length=3) == whole[-3:]
    assert ids(truncate_prompt_tokens=-1) == whole
    assert ids(add_special_tokens=False) == llm.get_tokenizer().encode(PROMPT, False)
    for bad in ({"truncate_prompt_tokens": 0}, {"truncation_side": "middle"}):
        with pytest.raises(ValidationError, match="tokenization_kwargs"):
            ids(**bad)


def test_failed_prompt_in_a_list_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(ValidationError):
        llm.generate(["fine", "x " * 5000], params(), use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()


def test_progress_may_be_shown_by_something_else(llm: LLM) -> None:
    seen: list[str] = []

    class Bar:
        def __init__(self, items: Any = (), desc: str = "", **options: Any) -> None:
            self.items = items
            self.format_dict = {"elapsed": 1.0}
            seen.append(desc)

        def __iter__(self) -> Any:
            return iter(self.items)

        def set_postfix_str(self, text: str, refresh: bool) -> None:
            seen.append(text)

        def update(self, count: int) -> None:
            seen.append(str(count))

        def close(self) -> None:
            seen.append("closed")

    llm.generate(["a", "b"], params(max_tokens=1), use_tqdm=Bar)
    assert seen[:2] == ["Rendering prompts", "Processed prompts"]
    assert seen[-1] == "closed"
    assert seen.count("1") == 2
    assert any("est. speed input:" in text and "output:" in text for text in seen)
    llm.chat([ENGLISH, ENGLISH], params(max_tokens=1), use_tqdm=Bar)
    assert "Rendering conversations" in seen


# chat


def test_chat_takes_one_conversation_or_several(llm: LLM) -> None:
    [alone] = llm.chat(ENGLISH, params(), use_tqdm=False)
    both = llm.chat([ENGLISH, ENGLISH], params(), False)
    assert [one.outputs[0].text for one in both] == [alone.outputs[0].text] * 2
    tokenizer = llm.get_tokenizer()
    expected = tokenizer.apply_chat_template(ENGLISH, add_generation_prompt=True)
    assert alone.prompt_token_ids == expected


def test_chat_continues_the_final_message(llm: LLM) -> None:
    talk: list[ChatMessage] = [*ENGLISH, {"role": "assistant", "content": "Well, "}]
    [output] = llm.chat(talk, params(), use_tqdm=False, continue_final_message=True)
    assert output.prompt is not None
    assert output.prompt.endswith("Well, ")


def test_chat_with_another_template_or_format(llm: LLM) -> None:
    template = "{{ messages[0].content }}{{ extra }}"
    for form in ("auto", "string"):
        [output] = llm.chat(
            ENGLISH, params(), use_tqdm=False, chat_template=template,
            chat_template_content_format=form, chat_template_kwargs={"extra": "!"},
        )  # fmt: skip
        assert output.prompt == "Say yes.!"
    [output] = llm.chat(
        ENGLISH, params(), use_tqdm=False, chat_template="{{ messages[0].content[0].text }}?",
        chat_template_content_format="openai",
    )  # fmt: skip
    assert output.prompt == "Say yes.?"
    with pytest.raises(ValidationError, match="chat_template_content_format"):
        llm.chat(ENGLISH, params(), use_tqdm=False, chat_template_content_format="xml")


# enqueue and wait


def test_enqueued_requests_run_when_they_are_waited_for(llm: LLM) -> None:
    ids = llm.enqueue(["a", "b"], params(), use_tqdm=False)
    more = llm.enqueue_chat(ENGLISH, params(), use_tqdm=False)
    assert all(len(name.rsplit("-", 1)[1]) == 8 for name in [*ids, *more])
    assert llm.llm_engine.get_num_unfinished_requests() == 3
    outputs = llm.wait_for_completion(RequestOutput, use_tqdm=False)
    assert [one.prompt for one in outputs[:2]] == ["a", "b"]
    expected = llm.generate(["a", "b"], params(), use_tqdm=False)
    assert texts(outputs[:2]) == texts(expected)
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_generate_between_enqueue_and_wait_gives_each_its_own(llm: LLM) -> None:
    llm.enqueue("a", params(max_tokens=1), use_tqdm=False)
    llm.enqueue("b", params(max_tokens=20, ignore_eos=True), use_tqdm=False)
    [other] = llm.generate("c", params(max_tokens=4), use_tqdm=False)
    assert other.prompt == "c"
    assert [one.prompt for one in llm.wait_for_completion(use_tqdm=False)] == ["a", "b"]


def test_outputs_of_another_type_than_asked_for_are_a_type_error(llm: LLM) -> None:
    llm.enqueue("a", params(max_tokens=1), use_tqdm=False)
    with pytest.raises(TypeError):
        llm.wait_for_completion(int, use_tqdm=False)


# beam search


def plain_beam_search(llm: LLM, width: int, steps: int, penalty: float) -> list[list[int]]:
    """The rules once more, with one request per beam and step."""
    start = llm.get_tokenizer().encode(PROMPT)
    eos = set(llm.model_config.eos_token_ids)
    beams: list[tuple[float, list[int]]] = [(0.0, start)]
    done: list[tuple[float, list[int]]] = []

    def score(beam: tuple[float, list[int]]) -> float:
        length = len(beam[1]) - (beam[1][-1] in eos)
        return beam[0] / math.pow(length, penalty)

    for _ in range(steps):
        grown = []
        for total, tokens in beams:
            one = params(max_tokens=1, logprobs=2 * width, ignore_eos=True)
            [output] = llm.generate([{"prompt_token_ids": tokens}], one, use_tqdm=False)
            for token_id, entry in output.outputs[0].logprobs[0].items():  # type: ignore[index]
                longer = (total + entry.logprob, [*tokens, token_id])
                (done if token_id in eos else grown).append(longer)
        beams = sorted(grown, key=score, reverse=True)[:width]
    return [tokens for _, tokens in sorted([*done, *beams], key=score, reverse=True)[:width]]


@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0])
def test_beam_search_finds_what_a_plain_one_finds(llm: LLM, penalty: float) -> None:
    wanted = BeamSearchParams(beam_width=3, max_tokens=4, length_penalty=penalty)
    [output] = llm.beam_search(PROMPT, wanted)
    assert [beam.tokens for beam in output.sequences] == plain_beam_search(llm, 3, 4, penalty)
    for beam in output.sequences:
        assert beam.text is not None
        assert beam.text.startswith(PROMPT)
        assert beam.finish_reason in ("stop", "length")
        answer = beam.tokens[len(beam.orig_prompt.prompt_token_ids) :]
        assert beam.cum_logprob == pytest.approx(
            sum(entry[i].logprob for entry, i in zip(beam.logprobs, answer, strict=True))
        )


def test_beam_of_width_one_is_the_greedy_answer(llm: LLM) -> None:
    [greedy] = llm.generate(PROMPT, params(max_tokens=5, ignore_eos=True), use_tqdm=False)
    wanted = BeamSearchParams(beam_width=1, max_tokens=5, ignore_eos=True)
    [output] = llm.beam_search(PROMPT, wanted)
    assert output.sequences[0].tokens[-5:] == greedy.outputs[0].token_ids


def test_beam_search_over_several_prompts_equals_each_alone(llm: LLM) -> None:
    wanted = BeamSearchParams(beam_width=2, max_tokens=3)
    prompts = ["1, 2, 3,", PROMPT, "Once upon"]
    alone = [llm.beam_search(prompt, wanted)[0].sequences for prompt in prompts]
    for limit in (None, 2):
        outputs = llm.beam_search(prompts, wanted, concurrency_limit=limit)  # type: ignore[arg-type]
        assert [o.sequences for o in outputs] == alone


def test_beam_search_over_embeddings_is_not_implemented(llm: LLM) -> None:
    prompt: Any = {"prompt_embeds": np.zeros((3, 576), np.float32)}
    with pytest.raises(NotImplementedError, match="prompt_embeds"):
        llm.beam_search(prompt, BeamSearchParams(beam_width=2, max_tokens=2))
    with pytest.raises(UnsupportedError, match="prompt_embeds"):
        llm.generate(prompt, params(), use_tqdm=False)
    pair: Any = {"encoder_prompt": "a", "decoder_prompt": "b"}
    with pytest.raises(UnsupportedError, match="encoder_prompt"):
        llm.generate(pair, params(), use_tqdm=False)


def test_beam_wider_than_the_cap_on_logprobs_is_refused(llm: LLM) -> None:
    with pytest.raises(ValidationError, match="logprobs"):
        llm.beam_search(PROMPT, BeamSearchParams(beam_width=11, max_tokens=2))


def test_beam_at_the_end_of_the_context_ends_there(llm: LLM) -> None:
    ids = [5] * (llm.llm_engine.max_model_len - 2)
    wanted = BeamSearchParams(beam_width=2, max_tokens=10, ignore_eos=True)
    [output] = llm.beam_search({"prompt_token_ids": ids}, wanted)
    assert {len(beam.tokens) for beam in output.sequences} == {llm.llm_engine.max_model_len}


# the tokenizer


def test_tokenizer_speaks_as_user_code_expects(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("Hello world")
    assert tokenizer("Hello world").input_ids == tokenizer("Hello world")["input_ids"] == ids
    assert tokenizer("Hello world").attention_mask == [1] * len(ids)
    assert tokenizer(["Hello world", "a"])["input_ids"] == [ids, tokenizer.encode("a")]
    for form in (ids, tuple(ids), np.array(ids), torch.tensor(ids)):
        assert tokenizer.decode(form) == "Hello world"
    assert tokenizer.decode(ids[0]) == "Hello"
    assert tokenizer.batch_decode([ids, ids]) == ["Hello world"] * 2
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokenizer.tokenize("Hello world") == tokens
    assert tokenizer.convert_tokens_to_ids(tokens) == ids
    assert tokenizer.convert_tokens_to_ids(tokens[0]) == ids[0]
    assert tokenizer.convert_ids_to_tokens(ids[0]) == tokens[0]
    assert tokenizer.convert_tokens_to_string(tokens) == "Hello world"
    vocabulary = tokenizer.get_vocab()
    assert vocabulary[tokens[0]] == ids[0]
    assert max(vocabulary.values()) + 1 == tokenizer.vocab_size == len(tokenizer)
    assert tokenizer.eos_token_id == vocabulary[tokenizer.eos_token or ""]
    assert tokenizer.eos_token_id in tokenizer.all_special_ids
    assert tokenizer.eos_token in tokenizer.all_special_tokens
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == (
        "Hello world"
    )
    assert (
        tokenizer.encode("a b c d", truncation=True, max_length=2)
        == (tokenizer.encode("a b c d")[:2])
    )
    with pytest.raises(AttributeError):
        _ = tokenizer("a").nothing


def test_tokenizer_applies_the_chat_template(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template(ENGLISH, tokenize=False, add_generation_prompt=True)
    assert "Say yes." in text
    ids = tokenizer.apply_chat_template(ENGLISH, add_generation_prompt=True)
    assert tokenizer.decode(ids) == text
    assert tokenizer.chat_template


# metrics


def test_metrics_are_records(llm: LLM) -> None:
    def read() -> dict[str, Any]:
        return {metric.name: metric for metric in llm.get_metrics()}

    before = read()
    [output] = llm.generate(PROMPT, params(), use_tqdm=False)
    after = read()
    assert isinstance(after["headrace:num_requests_running"], headrace.Gauge)
    tokens = after["headrace:generation_tokens"]
    assert isinstance(tokens, headrace.Counter)
    assert tokens.labels["engine"] == "0"
    num_new = tokens.value - before["headrace:generation_tokens"].value
    assert num_new == len(output.outputs[0].token_ids)
    latency = after["headrace:time_to_first_token_seconds"]
    assert isinstance(latency, headrace.Histogram)
    assert latency.count == before["headrace:time_to_first_token_seconds"].count + 1
    assert latency.buckets["+Inf"] == latency.count
    assert isinstance(after["headrace:generation_tokens"], headrace.Metric)


def test_counters_by_position_are_a_vector() -> None:
    from prometheus_client import CollectorRegistry, Counter

    from headrace.metrics.reader import Vector, read_metrics

    registry = CollectorRegistry()
    counter = Counter("x:accepted", "help", ["model_name", "position"], registry=registry)
    for position, value in ((0, 5), (2, 1)):
        counter.labels("m", position).inc(value)
    Counter("other:thing", "help", registry=registry)
    assert read_metrics(registry, "x") == [Vector("x:accepted", {"model_name": "m"}, [5, 0, 1])]


# control


def test_sleep_of_every_level_wakes_to_the_same_answers(llm: LLM) -> None:
    expected = texts(llm.generate(PROMPT, params(), use_tqdm=False))
    for level in (0, 1, 2):
        llm.sleep(level)
        assert llm.is_sleeping()
        with pytest.raises(ValidationError, match="wake_up"):
            llm.generate(PROMPT, params(), use_tqdm=False)
        assert llm.wake_up(["scheduling"]) is (level == 0)
        assert llm.wake_up() is True
        assert not llm.is_sleeping()
        assert texts(llm.generate(PROMPT, params(), use_tqdm=False)) == expected
    with pytest.raises(UnsupportedError, match="wait"):
        llm.sleep(1, mode="wait")
    llm.sleep(0, "keep")
    llm.release_kv_cache_memory()
    assert llm.wake_up() is True
    assert texts(llm.generate(PROMPT, params(), use_tqdm=False)) == expected


def test_enqueued_requests_are_kept_through_sleep(llm: LLM) -> None:
    expected = texts(llm.generate(PROMPT, params(), use_tqdm=False))
    llm.enqueue(PROMPT, params(), use_tqdm=False)
    llm.llm_engine.step()
    llm.sleep(2, "keep")
    llm.wake_up()
    assert texts(llm.wait_for_completion(use_tqdm=False)) == expected


def test_calls_of_the_workers_by_name_or_function(llm: LLM) -> None:
    [layout] = llm.collective_rpc("model_layout")
    assert layout == llm.apply_model("layout")[0]
    assert "num_layers=30" in layout
    [sizes] = llm.collective_rpc("sizes", timeout=5.0)
    assert sizes["max_model_len"] == 512
    assert llm.collective_rpc(lambda worker, a, b: worker.ready.num_blocks + a * b, None, (2,),
                              {"b": 3}) == [llm.llm_engine.ready.num_blocks + 6]  # fmt: skip
    assert llm.apply_model(lambda model: model.num_layers) == [30]
    assert llm.get_world_size() == 1
    for call in (lambda: llm.collective_rpc("os.system"), lambda: llm.apply_model("eval"),
                 lambda: llm.collective_rpc("sizes", None, (1,))):  # fmt: skip
        with pytest.raises(ValidationError):
            call()


def test_prefix_cache_can_be_reset(llm: LLM) -> None:
    long = {"prompt_token_ids": list(range(100, 200))}
    llm.generate(long, params(), use_tqdm=False)  # type: ignore[arg-type]
    [again] = llm.generate(long, params(), use_tqdm=False)  # type: ignore[arg-type]
    assert again.num_cached_tokens
    assert llm.reset_prefix_cache() is True
    [fresh] = llm.generate(long, params(), use_tqdm=False)  # type: ignore[arg-type]
    assert fresh.num_cached_tokens == 0
    llm.reset_mm_cache()


@pytest.mark.parametrize("name", ["encode", "embed", "classify"])
def test_what_a_generating_model_cannot_do_is_refused(llm: LLM, name: str) -> None:
    with pytest.raises(UnsupportedError, match="generates"):
        getattr(llm, name)("a")
    with pytest.raises(UnsupportedError, match="generates"):
        llm.score("a", "b")


# the constructor


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data_parallel_size": 2}, "examples/data_parallel.py"),
        ({"runner": "pooling"}, "--runner generate"),
        ({"kv_transfer_config": {"a": 1}}, "Invalid 'kv_transfer_config' provided: "),
        ({"compilation_config": "fast"}, "compilation_config"),
        ({"kv_sharing_fast_prefill": True}, "prompt_logprobs"),
        ({"worker_cls": "nowhere:Worker"}, "nowhere"),
        ({"worker_cls": type("Main", (), {"__module__": "__main__"})}, "worker_cls"),
        ({"logits_processors": [type("Local", (), {})]}, "logits_processors"),
        ({"logits_processors": ["headrace:shown"]}, "logits_processors"),
        ({"quantization": "awq"}, "quantization"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"enable_lora": True}, "enable_lora"),
        ({"distributed_executor_backend": "ray"}, "distributed_executor_backend"),
        ({"profiler_config": {"profiler": "cuda"}}, "profiler_config"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_option_that_cannot_be_is_a_value_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        LLM(**options)
    assert isinstance(caught.value, ConfigError)
    assert "\n" not in str(caught.value)


def test_option_that_does_not_exist_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="tensor_parallel_size"):
        LLM(tensor_paralel_size=1)


def test_options_of_other_engines_that_ask_for_nothing_are_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADRACE_ENABLE_MULTIPROCESSING", "0")
    monkeypatch.setattr("headrace.logger._seen", set())
    with pytest.warns(DeprecationWarning, match="swap_space"):
        llm = LLM(
            None, max_model_len=128, kv_cache_memory_bytes=16 << 20, runner="generate",
            convert="none", tokenizer_mode="auto", cpu_offload_gb=0, swap_space=4,
            enforce_eager=True, compilation_config=3, disable_custom_all_reduce=True,
            allowed_local_media_path="", renderer_num_workers=4, seed=1,
            distributed_executor_backend="uni", enable_sleep_mode=True,
            worker_cls="headrace.worker.uniproc.UniProcExecutor",
        )  # fmt: skip
    with llm:
        assert texts(llm.generate(PROMPT, params(max_tokens=2), use_tqdm=False)) == [" Paris."]
        with pytest.raises(AssertionError, match="Stat logging disabled"):
            llm.get_metrics()
    lines = [r.getMessage() for r in caplog.records if "renderer_num_workers" in r.getMessage()]
    assert len(lines) == 1


def test_profile_of_the_core(tmp_path: Any) -> None:
    folder = {"profiler": "torch", "torch_profiler_dir": str(tmp_path)}
    with LLM(max_model_len=128, kv_cache_memory_bytes=16 << 20, profiler_config=folder) as llm:
        llm.start_profile("mine", max_iterations=3)
        with pytest.raises(headrace.ProfilerAlreadyActiveError):
            llm.start_profile()
        llm.generate(PROMPT, params(), use_tqdm=False)
        files = llm.stop_profile()
        assert len(files) == 2
        assert set(files) == {str(path) for path in tmp_path.iterdir()}
        # The core lives in another process here: functions cannot be sent there.
        for call in (llm.collective_rpc, llm.apply_model):
            with pytest.raises(UnsupportedError, match="in this process"):
                call(lambda worker: 1)
        llm.sleep(1, mode="wait")
        assert llm.wake_up() is True


def test_default_sampling_params_are_the_models_own(llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams.from_optional(
        **llm.model_config.generation_config
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_ENABLE_MULTIPROCESSING", "0")
        with LLM(max_model_len=128, kv_cache_memory_bytes=16 << 20,
                 override_generation_config={"max_new_tokens": 3}) as other:  # fmt: skip
            [output] = other.generate(PROMPT, use_tqdm=False)
            assert len(output.outputs[0].token_ids) <= 3
