"""From prompts and conversations to ids, and every prompt that is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.config.engine import ModelConfig
from headrace.errors import UnsupportedError, ValidationError
from headrace.hub.lookup import find_model
from headrace.inputs import EngineInput
from headrace.text.renderer import Renderer
from headrace.text.tokenizer import Tokenizer, load_tokenizer

VOCAB_SIZE = 264


def make_config(**more: Any) -> ModelConfig:
    values = {
        "model": "m", "path": "/", "format": "gguf", "hf_config": {}, "model_type": "llama",
        "tokenizer": None, "max_model_len": 64, "vocab_size": VOCAB_SIZE, "served_names": ["m"],
        **more,
    }  # fmt: skip
    return ModelConfig(**values)


@pytest.fixture
def renderer(byte_level: Tokenizer) -> Renderer:
    return Renderer(byte_level, make_config())


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_text_gets_bos_unless_told_otherwise(renderer: Renderer, byte_level: Tokenizer) -> None:
    rendered = renderer.render_prompt("abc")
    assert rendered == EngineInput(byte_level.encode("abc"), prompt="abc")
    assert rendered.prompt_token_ids[0] == byte_level.bos_token_id
    bare = renderer.render_prompt("abc", add_special_tokens=False)
    assert bare.prompt_token_ids == rendered.prompt_token_ids[1:]
    assert renderer.render_prompt({"prompt": "abc", "cache_salt": "s"}) == EngineInput(
        rendered.prompt_token_ids, prompt="abc", cache_salt="s"
    )


def test_ids_pass_unchanged(renderer: Renderer) -> None:
    assert renderer.render_prompt([5, 0, 263]) == EngineInput([5, 0, 263])
    given = {"prompt_token_ids": [5], "prompt": "x", "cache_salt": "é"}
    assert renderer.render_prompt(given) == EngineInput([5], prompt="x", cache_salt="é")
    assert Renderer(None, make_config()).render_prompt([5]) == EngineInput([5])


@pytest.mark.parametrize(
    ("prompt", "message", "param"),
    [
        ("", "must not be empty", "prompt"),
        ([], "no tokens", "prompt"),
        ([[]], r"holds \[\]", "prompt"),
        ({"prompt": ""}, "must not be empty", "prompt"),
        ({"prompt_token_ids": []}, "no tokens", "prompt"),
        ({}, "needs prompt or prompt_token_ids", "prompt"),
        ({"prompt": 5}, "must be a string", "prompt"),
        ({"prompt_token_ids": "ab"}, "must be a list", "prompt_token_ids"),
        ([1, -1], "holds -1, token ids are integers from 0 to 263", "prompt"),
        ([264], "holds 264", "prompt"),
        ([2**64], "holds 18446744073709551616", "prompt"),
        ([1.0], "holds 1.0", "prompt"),
        ([True], "holds True", "prompt"),
        (["a"], "holds 'a'", "prompt"),
        ({"prompt_token_ids": [1], "prompt": "\ud800"}, "lone surrogate", "prompt"),
        ({"prompt_token_ids": [None]}, "prompt_token_ids holds None", "prompt_token_ids"),
        (5, "not int", "prompt"),
        ("a\ud800", "lone surrogate", "prompt"),
        ({"prompt": "a", "cache_salt": ""}, "non-empty string", "cache_salt"),
        ({"prompt": "a", "cache_salt": 5}, "non-empty string", "cache_salt"),
        ({"prompt_token_ids": [1], "cache_salt": "\udfff"}, "lone surrogate", "cache_salt"),
    ],
)
def test_prompt_that_is_not_allowed_is_refused(
    renderer: Renderer, prompt: Any, message: str, param: str
) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        renderer.render_prompt(prompt)
    assert caught.value.param in (param, "prompt_token_ids")


def test_other_kinds_of_prompt_are_refused_by_name(renderer: Renderer) -> None:
    with pytest.raises(UnsupportedError, match=r"'multi_modal_data' are not supported"):
        renderer.render_prompt({"prompt": "a", "multi_modal_data": {}})  # type: ignore[typeddict-unknown-key]


def test_far_too_long_text_is_refused_before_it_is_tokenised(
    renderer: Renderer, byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[int]:
        raise AssertionError("tokenised")

    monkeypatch.setattr(byte_level, "encode", fail)
    for render in (lambda: renderer.render_prompt("x" * 1000),
                   lambda: renderer.render_chat(user("x" * 1000))):  # fmt: skip
        with pytest.raises(ValidationError, match=r"at least 1[67]. tokens, the context holds 64"):
            render()
    with pytest.raises(AssertionError, match=r"tokenised"):
        renderer.render_prompt("x" * 1000, limit_length=False)


def test_token_the_model_does_not_know_is_refused(byte_level: Tokenizer) -> None:
    small = Renderer(byte_level, make_config(vocab_size=200))
    with pytest.raises(ValidationError, match=r"the model knows 200"):
        small.render_prompt("<end>")


def test_without_tokenizer_text_is_refused() -> None:
    renderer = Renderer(None, make_config())
    for render in (lambda: renderer.render_prompt("a"), lambda: renderer.render_chat(user("a"))):
        with pytest.raises(ValidationError, match=r"without a tokenizer.*prompt_token_ids"):
            render()


def test_chat_has_exactly_one_bos(renderer: Renderer, byte_level: Tokenizer) -> None:
    bos = byte_level.bos_token_id
    for add in (False, True):
        rendered = renderer.render_chat(user("a"), add_special_tokens=add)
        assert rendered.prompt_token_ids.count(bos or 0) == 1
        assert rendered.prompt == "<bos>[user]a[assistant]"
        assert rendered.prompt_token_ids[0] == bos
    plain = "{{ messages[0].content }}"
    for add in (False, True):
        rendered = renderer.render_chat(user("a"), chat_template=plain, add_special_tokens=add)
        assert rendered.prompt_token_ids.count(bos or 0) == int(add)


def test_parts_and_string_give_the_same_ids(renderer: Renderer) -> None:
    parts = [{"type": "text", "text": "hello"}]
    assert renderer.render_chat(user(parts)) == renderer.render_chat(user("hello"))


def test_template_may_see_the_parts_content_came_in(renderer: Renderer) -> None:
    template = "{% for m in messages %}{% for part in m.content %}<{{ part.text }}>{% endfor %}"
    template += "{% endfor %}"
    options: dict[str, Any] = {"chat_template": template, "content_format": "openai"}
    two = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    talk = [*user(two), *user("c"), {"role": "assistant", "content": None}]
    assert renderer.render_chat(talk, **options).prompt == "<a><b><c>"
    talk[-1] = {"role": "assistant", "content": "d"}
    continued = renderer.render_chat(talk, continue_final_message=True, **options)
    assert continued.prompt == "<a><b><c><d"


def test_generation_prompt_is_optional(renderer: Renderer) -> None:
    assert renderer.render_chat(user("a"), add_generation_prompt=False).prompt == "<bos>[user]a"


def test_final_message_is_continued(renderer: Renderer) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    template += "{% if add_generation_prompt %}<assistant>{% endif %}"
    messages = [*user("a"), {"role": "assistant", "content": "b "}]
    rendered = renderer.render_chat(
        messages, chat_template=template, continue_final_message=True, cache_salt="s"
    )
    assert rendered.prompt == "<user>a</><assistant>b "
    assert rendered.cache_salt == "s"
    assert messages[-1]["content"] == "b "
    with pytest.raises(ValidationError, match=r"does not show the last message"):
        renderer.render_chat(messages, chat_template="x", continue_final_message=True)


def test_template_is_chosen_request_then_option_then_model(byte_level: Tokenizer) -> None:
    renderer = Renderer(byte_level, make_config(chat_template="option"))
    assert renderer.render_chat(user("a")).prompt == "option"
    assert renderer.render_chat(user("a"), chat_template="request").prompt == "request"


def test_limits_of_templates_come_from_the_config(byte_level: Tokenizer) -> None:
    renderer = Renderer(byte_level, make_config(chat_template_max_chars=5))
    assert renderer.render_chat(user("a"), chat_template="12345").prompt == "12345"
    with pytest.raises(ValidationError, match=r"more than 5 characters"):
        renderer.render_chat(user("a"), chat_template="123456")


def test_missing_template_names_the_option(piece: Tokenizer) -> None:
    renderer = Renderer(piece, make_config(vocab_size=1000))
    with pytest.raises(ValidationError, match=r"no chat template.*--chat-template"):
        renderer.render_chat(user("a"))


def test_developer_is_system_for_templates_that_do_not_know_it(renderer: Renderer) -> None:
    messages = [{"role": "developer", "content": "be kind"}, *user("a")]
    prompt = renderer.render_chat(messages).prompt
    assert prompt == "<bos>[system]be kind[user]a[assistant]"
    knows = "{{ messages[0].role }}{# developer #}"
    assert renderer.render_chat(messages, chat_template=knows).prompt == "developer"


def test_documents_are_none_unless_given(renderer: Renderer) -> None:
    template = "{% if documents is not none %}{{ documents[0] }}{% else %}none{% endif %}"
    assert renderer.render_chat(user("a"), chat_template=template).prompt == "none"
    given = {"documents": ["d"]}
    rendered = renderer.render_chat(user("a"), chat_template=template, chat_template_kwargs=given)
    assert rendered.prompt == "d"


def test_variables_and_tools_reach_the_template(renderer: Renderer) -> None:
    template = "{{ mood }}{{ eos_token }}{{ tools | length if tools else 'none' }}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    rendered = renderer.render_chat(
        user("a"), chat_template=template, tools=tools, chat_template_kwargs={"mood": "calm"}
    )
    assert rendered.prompt == "calm<end>1"
    assert renderer.render_chat(user("a"), chat_template=template, tools=[]).prompt == "<end>none"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chat_template_kwargs": {"messages": []}}, "must not hold 'messages'"),
        ({"chat_template_kwargs": {"tools": []}}, "must not hold 'tools'"),
        ({"chat_template_kwargs": {"bos_token": ""}}, "must not hold 'bos_token'"),
        ({"chat_template_kwargs": []}, "must be an object"),
        ({"chat_template_kwargs": {"a": "\ud800"}}, "lone surrogate"),
        ({"chat_template_kwargs": {"a": object()}}, "holds a object"),
        ({"tools": {"a": 1}}, "tools must be a list of objects"),
        ({"tools": ["f"]}, "tools must be a list of objects"),
        ({"tools": [{"name": "\udc80"}]}, "tools holds a lone surrogate"),
        (
            {"chat_template": "{{ raise_exception('roles must alternate') }}"},
            "roles must alternate",
        ),
        ({"chat_template": "{{ messages[9].content }}"}, "the chat template failed"),
        ({"chat_template": "{{ ''.__class__ }}"}, "the chat template failed"),
        ({"chat_template": "{# nothing #}"}, "render to an empty prompt"),
        ({"cache_salt": ""}, "non-empty string"),
    ],
)
def test_chat_option_that_is_not_allowed_is_refused(
    renderer: Renderer, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        renderer.render_chat(user("a"), **options)


def test_empty_conversation_is_refused(renderer: Renderer) -> None:
    with pytest.raises(ValidationError, match=r"messages must not be empty"):
        renderer.render_chat([])


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"])
def test_real_chats_equal_the_reference(
    model_dir: Callable[[str], Path], expected: dict[str, Any], name: str
) -> None:
    for folder in (model_dir(f"{name}-gguf"), model_dir(name)):
        facts = find_model(str(folder))
        assert facts.tokenizer is not None
        config = make_config(max_model_len=8192, vocab_size=facts.hf_config["vocab_size"])
        renderer = Renderer(load_tokenizer(facts.tokenizer), config)
        chats = [prompt for prompt in expected[name]["prompts"] if "messages" in prompt]
        assert chats
        for chat in chats:
            rendered = renderer.render_chat(chat["messages"])
            assert rendered.prompt == chat["rendered"]
            assert rendered.prompt_token_ids == chat["prompt_token_ids"]
        called = [
            *user("hi"),
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "42"}]},
        ]  # fmt: skip
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        prompt = renderer.render_chat(called, tools=tools).prompt
        assert prompt is not None
        assert "42" in prompt
        if name.startswith("qwen"):
            assert '{"name": "f", "arguments": {}}' in prompt
