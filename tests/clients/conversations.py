"""Scripted conversations with each client package of Python, against a real server.

Run by `run.py`, with a Python that has the packages: BASE_URL and MODEL come from the environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Literal

os.environ.update(
    OPENAI_API_KEY="none", LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_AGENTS_DISABLE_TRACING="1"
)

from pydantic import BaseModel

BASE_URL, MODEL = os.environ["BASE_URL"], os.environ["MODEL"]
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


class City(BaseModel):
    """What is asked for; each field has few values, so that any model finds an end."""

    name: Literal["Paris", "Rome", "Oslo"]
    country: Literal["France", "Italy", "Norway"]


def with_openai() -> None:
    from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

    client = OpenAI(base_url=BASE_URL, max_retries=0)
    options: dict[str, Any] = {"model": MODEL, "messages": QUESTION, **GREEDY}
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    text = whole.choices[0].message.content
    assert "Paris" in text
    entries = whole.choices[0].logprobs.content
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    spelled = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert spelled == text, (spelled, text)
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage == whole.usage
    with client.chat.completions.stream(**options) as events:
        assert events.get_final_completion().choices[0].message.content == text
    parsed = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=City, temperature=0
    )
    assert isinstance(parsed.choices[0].message.parsed, City)
    assert client.completions.create(model=MODEL, prompt="The capital of France is",
                                     **GREEDY).choices[0].text  # fmt: skip
    for refused, kind in (({"temperature": 9}, BadRequestError), ({"model": "x"}, NotFoundError)):
        try:
            client.chat.completions.create(**{**options, **refused})
        except kind as error:
            param = error.param
        else:
            param = None
        assert param == next(iter(refused)), refused

    async def several() -> None:
        async with AsyncOpenAI(base_url=BASE_URL) as many:
            asked = [many.chat.completions.create(**options) for _ in range(8)]
            answers = await asyncio.gather(*asked)
        assert {answer.choices[0].message.content for answer in answers} == {text}

    asyncio.run(several())


def with_langchain() -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=BASE_URL, model=MODEL, **GREEDY)
    whole = model.invoke("What is the capital of France?")
    assert "Paris" in whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    streamed = "".join(str(chunk.content) for chunk in model.stream(QUESTION))
    assert streamed == whole.content
    told = model.bind(logprobs=True).invoke(QUESTION)
    assert told.response_metadata["logprobs"]["content"]
    city = model.with_structured_output(City, method="json_schema").invoke(QUESTION)
    assert isinstance(city, City)


def with_litellm() -> None:
    import litellm

    options: dict[str, Any] = {
        "model": f"openai/{MODEL}", "api_base": BASE_URL, "messages": QUESTION, **GREEDY,
    }  # fmt: skip
    whole = litellm.completion(**options, logprobs=True)
    text = whole.choices[0].message.content
    assert "Paris" in text
    assert whole.choices[0].logprobs
    chunks = litellm.completion(**options, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    formed = litellm.completion(**options, response_format=City)
    City.model_validate_json(formed.choices[0].message.content)


def with_instructor() -> None:
    import instructor
    from openai import OpenAI

    client = instructor.from_openai(OpenAI(base_url=BASE_URL), mode=instructor.Mode.JSON_SCHEMA)
    city = client.chat.completions.create(
        model=MODEL, messages=QUESTION, response_model=City, temperature=0, max_retries=0
    )
    assert isinstance(city, City)
    parts = client.chat.completions.create_partial(
        model=MODEL, messages=QUESTION, response_model=City, temperature=0, max_retries=0
    )
    *_, last = parts
    assert (last.name, last.country) == (city.name, city.country)


def with_agents() -> None:
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner
    from openai import AsyncOpenAI

    async def talk() -> None:
        async with AsyncOpenAI(base_url=BASE_URL) as client:
            model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
            settings = ModelSettings(temperature=0, max_tokens=24)
            agent = Agent(name="a", instructions="Be brief.", model=model, model_settings=settings)
            whole = await Runner.run(agent, "What is the capital of France?")
            assert whole.final_output
            streamed = Runner.run_streamed(agent, "What is the capital of France?")
            async for _event in streamed.stream_events():
                pass
            assert streamed.final_output == whole.final_output
            former = Agent(name="b", model=model, output_type=City)
            assert isinstance((await Runner.run(former, "Name a city.")).final_output, City)

    asyncio.run(talk())


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
WEATHER_QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


def tools_with_openai() -> None:
    from openai import OpenAI

    client = OpenAI(base_url=BASE_URL, max_retries=0)
    options: dict[str, Any] = {
        "model": MODEL, "messages": WEATHER_QUESTION, "tools": [WEATHER], "temperature": 0,
        "max_tokens": 64,
    }  # fmt: skip
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        whole = client.chat.completions.create(**options, tool_choice=choice)
        [call] = whole.choices[0].message.tool_calls
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        with client.chat.completions.stream(**options, tool_choice=choice) as events:
            [streamed] = events.get_final_completion().choices[0].message.tool_calls
        assert streamed.function.arguments == call.function.arguments
    told = [*WEATHER_QUESTION, whole.choices[0].message,
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."}]  # fmt: skip
    last = client.chat.completions.create(**{**options, "messages": told}, tool_choice="none")
    assert last.choices[0].message.content
    assert last.choices[0].message.tool_calls is None


def tools_with_langchain() -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=BASE_URL, model=MODEL, temperature=0, max_tokens=64)
    bound = model.bind_tools([WEATHER], tool_choice="any")
    [call] = bound.invoke(WEATHER_QUESTION).tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    first, *rest = bound.stream(WEATHER_QUESTION)
    for chunk in rest:
        first += chunk
    [streamed] = first.tool_calls
    assert streamed["args"] == call["args"]


def tools_with_litellm() -> None:
    import litellm

    options: dict[str, Any] = {
        "model": f"openai/{MODEL}", "api_base": BASE_URL, "messages": WEATHER_QUESTION,
        "tools": [WEATHER], "tool_choice": "required", "temperature": 0, "max_tokens": 64,
    }  # fmt: skip
    [call] = litellm.completion(**options).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    chunks = list(litellm.completion(**options, stream=True))
    [streamed] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments


def tools_with_instructor() -> None:
    import instructor
    from openai import OpenAI

    client = instructor.from_openai(OpenAI(base_url=BASE_URL), mode=instructor.Mode.TOOLS)
    city = client.chat.completions.create(
        model=MODEL, messages=QUESTION, response_model=City, temperature=0, max_retries=0
    )
    assert isinstance(city, City)


def tools_with_agents() -> None:
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    asked: list[str] = []

    @function_tool
    def get_weather(city: Literal["Paris", "Rome", "Oslo"]) -> str:
        """The weather of a city."""
        asked.append(city)
        return "Sunny, 21 degrees."

    async def talk() -> None:
        async with AsyncOpenAI(base_url=BASE_URL) as client:
            model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
            settings = ModelSettings(temperature=0, max_tokens=64, tool_choice="required")
            agent = Agent(name="a", model=model, model_settings=settings, tools=[get_weather],
                          tool_use_behavior="stop_on_first_tool")  # fmt: skip
            result = await Runner.run(agent, "What is the weather in Paris?")
            assert asked == ["Paris"]
            assert result.final_output == "Sunny, 21 degrees."

    asyncio.run(talk())


CONVERSATIONS: dict[tuple[str, str], Callable[[], None]] = {
    ("openai", "talk"): with_openai,
    ("langchain-openai", "talk"): with_langchain,
    ("litellm", "talk"): with_litellm,
    ("instructor", "talk"): with_instructor,
    ("openai-agents", "talk"): with_agents,
    ("openai", "tools"): tools_with_openai,
    ("langchain-openai", "tools"): tools_with_langchain,
    ("litellm", "tools"): tools_with_litellm,
    ("instructor", "tools"): tools_with_instructor,
    ("openai-agents", "tools"): tools_with_agents,
}


if __name__ == "__main__":
    CONVERSATIONS[sys.argv[1], sys.argv[2]]()
