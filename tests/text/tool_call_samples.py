"""What models of each family write, and what it holds: texts, and calls as (name, arguments)."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.text.tool_calls.table import FAMILIES

TOOLS: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}},
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
                       "tags": {"type": "array"}, "unknown": {}},
    },
}  # fmt: skip


class Sample(NamedTuple):
    family: str
    text: str
    told: list[str | tuple[str, str]]


def plain(family: str, *texts: str) -> list[Sample]:
    """Texts without a call: all of each reaches the client."""
    return [Sample(family, text, [text] if text else []) for text in texts]


EVERYWHERE = (
    "", " ", "\n\n", "Hello", "a < b and b > a", "<", "<tool", "<tool_call", "[", "[TOOL", "{", "}",
    "f(a=1", "日本 👩‍👩‍👧 é", "```json", "```json\n{}\n```", "```python\nprint({})\n```",
    '{"name": "Anna", "age": 3}', '{"a": 1}', "[1, 2]", "[]", "{}", "x = [f(1), g(2)]\n",
    "trailing space \n ", "a\n\n\nb",
)  # fmt: skip

HERMES = [
    Sample(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        [("get_weather", '{"city": "Paris"}')],
    ),
    Sample("hermes", '<tool_call>{"name":"f","arguments":{}}</tool_call>', [("f", "{}")]),
    Sample(
        "hermes",
        'Both.\n<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>\n<tool_call>\n'
        '{"name": "f", "arguments": {"a": "y"}}\n</tool_call>',
        ["Both.", ("f", '{"a": "x"}'), ("f", '{"a": "y"}')],
    ),
    Sample(
        "hermes",
        '<tool_call>{"arguments": {"a": "</tool_call> }{ \\"<tool_call>\\" \\\\", "n": '
        '[{"x": [[-0.5e+3, null, true]]}]}, "name": "f"}</tool_call> Done.\n',
        [
            ("f", '{"a": "</tool_call> }{ \\"<tool_call>\\" \\\\", "n": '
                  '[{"x": [[-0.5e+3, null, true]]}]}'),
            " Done.\n",
        ],
    ),
    Sample(
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "日本 👩‍👩‍👧 \\u00e9"}}</tool_call>',
        [("f", '{"a": "日本 👩‍👩‍👧 \\u00e9"}')],
    ),
    Sample(
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": [1, 2.5,-0 , 1e3, [0,\n0], 7]}}</tool_call>',
        [("f", '{"a": [1, 2.5,-0 , 1e3, [0,\n0], 7]}')],
    ),
    # a line end as it is within a string is mended
    Sample(
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>',
        [("f", '{"a": "x\\ny"}')],
    ),
    # no arguments, or as a text
    Sample("hermes", '<tool_call>{"name": "f"}</tool_call>', [("f", "{}")]),
    Sample("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', [("f", "{}")]),
    Sample(
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}</tool_call>',
        [("f", '{"a": "é"}')],
    ),
    # the end mark is missing, or cut
    Sample("hermes", '<tool_call>\n{"name": "f", "arguments": {}}\n', [("f", "{}")]),
    Sample("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_', [("f", "{}")]),
    # a tool nobody offered, but marked as a call
    Sample("hermes", '<tool_call>{"name": "h", "arguments": {}}</tool_call>', [("h", "{}")]),
    Sample(
        "hermes",
        '<tool_call> no <tool_call>{"name": "f", "arguments": {}}</tool_call>',
        ["<tool_call> no", ("f", "{}")],
    ),
    Sample(
        "hermes",
        '<<<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        ["<<", ("f", "{}")],
    ),
    # forgotten marks
    Sample("hermes", ' {"name": "f", "arguments": {"a": "x"}}\n', [("f", '{"a": "x"}')]),
    Sample(
        "hermes",
        '```json\n{\n  "name": "f",\n  "arguments": {\n    "b": 1\n  }\n}\n```',
        [("f", '{\n    "b": 1\n  }')],
    ),
    Sample(
        "hermes",
        '{"name": "f", "arguments": {}}\n{"name": "f", "arguments": {"b": 2}}',
        [("f", "{}"), ("f", '{"b": 2}')],
    ),
    # an answer in JSON is none, and what stands in it is read as text is
    Sample(
        "hermes",
        '{"name": "x", "t": "<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        ['{"name": "x", "t": "', ("f", "{}")],
    ),
    *plain(
        "hermes",
        '{"type": "function", "name": "f", "other": {}}',
        '{"name": {"f": 1}, "arguments": {}}',
        '{"a": {"name": "f", "arguments": {}}}',
        '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call> rest',
        '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>',
        "<tool_call></tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>',
        '{"name": "f"}',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 01}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": \'x\'}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": [1, 02, 3]}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": [1, 2, ]}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": [1. , 2]}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}} and</tool_call>',
        '<tool_call>{"name": "f", "arguments": ' + '{"a": ' * 70 + "1" + "}" * 71 + "</tool_call>",
        '{"name": "f", "arguments": {}} is what you send.',
        '{"name": "unknown", "arguments": {}}',
        'You send {"name": "f", "arguments": {}}',
    ),
]  # fmt: skip

LLAMA3 = [
    Sample(
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        [("get_weather", '{"city": "Paris"}')],
    ),
    Sample(
        "llama3_json",
        '<|python_tag|>{"name": "f", "parameters": {"a": "}"}}; {"name": "f", "parameters": {}}',
        [("f", '{"a": "}"}'), ("f", "{}")],
    ),
    Sample(
        "llama3_json",
        '{"type": "function", "name": "f", "parameters": {"b": 1}};{"name":"f","parameters":{}}',
        [("f", '{"b": 1}'), ("f", "{}")],
    ),
    Sample("llama3_json", '<|python_tag|>{"name": "h", "arguments": {}}', [("h", "{}")]),
    *plain(
        "llama3_json",
        '<|python_tag|>print("x")',
        '{"name": "h", "parameters": {}}',
        '{"name": "f", "parameters": {}} and',
        '{"name": "f", "parameters": {"a": "x"}',
        '{"name": "f", "parameters": "x"}',
    ),
]

MISTRAL = [
    Sample(
        "mistral",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": "]"}}, {"arguments": {}, "name": "f"}]',
        [("f", '{"a": "]"}'), ("f", "{}")],
    ),
    Sample("mistral", 'Yes. [TOOL_CALLS] [ {"name": "h", "arguments": {}} ]\n',
           ["Yes.", ("h", "{}")]),
    Sample(
        "mistral",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "[TOOL_CALLS]"}[TOOL_CALLS]f{"b": 1}',
        [("get_weather", '{"city": "[TOOL_CALLS]"}'), ("f", '{"b": 1}')],
    ),
    Sample("mistral", '[TOOL_CALLS]f[CALL_ID]abc123DEF[ARGS]{"b": 1}', [("f", '{"b": 1}')]),
    Sample("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}', [("f", "{}")]),
    Sample(
        "mistral",
        '[TOOL_CALLS][{"name": "f", "arguments": {}}, oops',
        [("f", "{}"), " oops"],
    ),
    *plain(
        "mistral",
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS][1]",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS]5",
        '[TOOL_CALLS]{"a": 1}',
        '[TOOL_CALLS][{"name": "f", "arguments": 5}]',
    ),
]  # fmt: skip

_V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
_V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"


def _deepseek(*calls: str) -> str:
    return "<｜tool▁calls▁begin｜>" + "\n".join(calls) + "<｜tool▁calls▁end｜>"


DEEPSEEK = [
    Sample(
        "deepseek_v3",
        "Let me look.\n\n" + _deepseek(_V3.format("get_weather", '{"city": "```"}')),
        ["Let me look.", ("get_weather", '{"city": "```"}')],
    ),
    Sample(
        "deepseek_v3",
        _deepseek(_V3.format("f", "{}"), _V3.format("f", '{\n  "b": 1\n}')) + " Done.",
        [("f", "{}"), ("f", '{\n  "b": 1\n}'), " Done."],
    ),
    Sample(
        "deepseek_v31",
        _deepseek(_V31.format("f", '{"a": "é"}'), _V31.format("f", "{}")),
        [("f", '{"a": "é"}'), ("f", "{}")],
    ),
    Sample("deepseek_v3", _deepseek(_V3.format("f", "{}"))[:-20], [("f", "{}")]),
    Sample(
        "deepseek_v3",
        _deepseek(_V3.format("f", "{}"), "<｜tool▁call▁begin｜>oops"),
        [("f", "{}"), "\n<｜tool▁call▁begin｜>oops<｜tool▁calls▁end｜>"],
    ),
    *plain(
        "deepseek_v3",
        _deepseek(),
        _deepseek("x"),
        _deepseek("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}"),
        _deepseek(_V3.format("f", "[]")),
        _deepseek(_V3.format("", "{}")),
    ),
]

PYTHONIC = [
    Sample(
        "pythonic",
        "[get_weather(city='Paris', days=3), f()]",
        [("get_weather", '{"city": "Paris", "days": 3}'), ("f", "{}")],
    ),
    Sample(
        "pythonic",
        '<|python_start|>[f(a="it\'s [a] \\"(b)\\"\\n", b=-1_000)]<|python_end|>',
        [("f", '{"a": "it\'s [a] \\"(b)\\"\\n", "b": -1000}')],
    ),
    Sample(
        "pythonic",
        "[get_weather(tags=[1, 2.5, True, None, {'x': (1,)}, \"a\" 'b', '\\u65e5', r'\\n'],)]\n",
        [("get_weather",
          '{"tags": [1, 2.5, true, null, {"x": [1]}, "ab", "日", "\\\\n"]}')],
    ),
    Sample(
        "pythonic",
        "[f(a=\"\"\"x\n\"y\" ]) \"\"\", b=true)]",
        [("f", '{"a": "x\\n\\"y\\" ]) ", "b": true}')],
    ),
    Sample("pythonic", "Hm.<|python_start|>[h(x=1)]<|python_end|> Done.",
           ["Hm.", ("h", '{"x": 1}'), " Done."]),
    # nothing is evaluated: what is no literal is a string
    Sample(
        "pythonic",
        "[f(a=__import__('os').system('x'), b=1+1)]",
        [("f", '{"a": "__import__(\'os\').system(\'x\')", "b": "1+1"}')],
    ),
    Sample("pythonic", "[f(a=b'x', b=f'{1}')]", [("f", '{"a": "b\'x\'", "b": "f\'{1}\'"}')]),
    Sample("pythonic", "[f(a=1e999)]", [("f", '{"a": "1e999"}')]),
    Sample("pythonic", f"[f(a={'9' * 80})]", [("f", f'{{"a": "{"9" * 80}"}}')]),
    Sample("pythonic", f"[f(a={'[' * 70}{']' * 70})]",
           [("f", f'{{"a": "{"[" * 70}{"]" * 70}"}}')]),
    *plain(
        "pythonic",
        "[f(1)]",
        "[f(a=1)] and",
        "[f(a=1",
        "[f(a=]",
        "[f(a='x)]",
        "[h(a=1)]",
        "[f(a=1), x]",
        "[f]",
        "[f(a=1)(b=2)]",
        "see [f(a=1)]",
        "<|python_start|>print(1)<|python_end|>",
    ),
]  # fmt: skip

QWEN3_CODER = [
    Sample(
        "qwen3_coder",
        "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        ["I look.", ("get_weather", '{"city": "Paris", "days": 3}')],
    ),
    Sample(
        "qwen3_coder",
        "<tool_call><function=f></function></tool_call>\n<function=f><parameter=a>\n\n  x <b> "
        "\"q\" \\ \n</parameter></function>",
        [("f", "{}"), ("f", '{"a": "\\n  x <b> \\"q\\" \\\\ "}')],
    ),
    Sample(
        "qwen3_coder",
        "<function=get_weather><parameter=tags>['a', {\"b\": None}]</parameter>"
        "<parameter=city>5</parameter></function>",
        [("get_weather", '{"tags": ["a", {"b": null}], "city": "5"}')],
    ),
    Sample(
        "qwen3_coder",
        '<function=get_weather><parameter=tags>[1, "\\ud83d\\ude00"]</parameter>'
        "<parameter=days>soon</parameter></function>",
        [("get_weather", '{"tags": [1, "\\ud83d\\ude00"], "days": "soon"}')],
    ),
    # nothing is evaluated, and what has no type is a string
    Sample(
        "qwen3_coder",
        "<function=get_weather><parameter=unknown>__import__('os')</parameter>"
        f"<parameter=tags>{'[' * 80}{']' * 80}</parameter>"
        f"<parameter=days>{'9' * 80}</parameter><parameter=new>1</parameter></function>",
        [("get_weather",
          '{"unknown": "__import__(\'os\')", '
          f'"tags": "{"[" * 80}{"]" * 80}", "days": {"9" * 80}, "new": "1"}}')],
    ),
    Sample("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>x</parameter>",
           [("f", '{"a": "x"}')]),
    *plain(
        "qwen3_coder",
        "<tool_call>",
        "<tool_call>{}</tool_call>",
        "<function=>x</function>",
        "<function=f x</function>",
        "<function=f><parameter=a>x</function>",
        "<function=f>x</function>",
        "<tool_call><function=f></function></function>",
    ),
]  # fmt: skip

SAMPLES: list[Sample] = [
    *[sample for family in FAMILIES for sample in plain(family, *EVERYWHERE)],
    *HERMES, *LLAMA3, *MISTRAL, *DEEPSEEK, *PYTHONIC, *QWEN3_CODER,
]  # fmt: skip
