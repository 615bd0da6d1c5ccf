"""Templates of strangers: what they may do, and that nothing else works or lasts."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headrace.errors import ValidationError
from headrace.text.chat_template import ChatTemplates
from tests.waiting import PATIENCE

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


@pytest.fixture(scope="module")
def templates() -> ChatTemplates:
    return ChatTemplates()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[0]['content'] }}{{ messages[1].role }}", "hiassistant"),
        ("{% for m in messages %}{{ loop.index }}{{ m.role }}{% endfor %}", "1user2assistant"),
        ("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}x{% endfor %}", "x"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
        ("{{ messages | tojson }}",
         '[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]'),
        ("{{ 'é<&' | tojson }}", '"é<&"'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=2, sort_keys=true) }}",
         '{\n  "a": [\n    2\n  ],\n  "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}", "yo"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
         "{% endfor %}{{ ns.n }}", "2"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[0].content) }}", "<hi>"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user, assistant"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | first }}",
         "assistant"),
        ("{{ messages[-1:][0].content ~ 1 ~ none }}", "yo1None"),
        ("{{ 'a-b'.split('-')[1].upper() + ' x '.strip() }}", "Bx"),
        ("{{ '%s is %d' % ('it', 5) }} {{ '{} {k}'.format(1, k=2) }}", "it is 5 1 2"),
        ("{{ 'ab' | replace('a', 'x') | upper | trim | indent(2) }}", "XB"),
        ("{{ '-' * 3 }}{{ [0] * 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}", "---[0, 0]332"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{% endfor %}", "ab"),
        ("{{ absent is defined }}{{ absent | default('d') }}{{ messages is iterable }}",
         "FalsedTrue"),
        ("{% set x %}q{{ 1 }}{% endset %}{{ x }}{{ range(3) | list }}", "q1[0, 1, 2]"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% for x in [[1, [2]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
         "12"),
    ],
)  # fmt: skip
def test_what_templates_use_works(templates: ChatTemplates, source: str, text: str) -> None:
    assert templates.render(source, {"messages": MESSAGES}) == text


def test_complaint_of_the_template_is_the_message(templates: ChatTemplates) -> None:
    source = "{% if messages[0].role != 'system' %}{{ raise_exception('no system!') }}{% endif %}"
    with pytest.raises(ValidationError, match=r"^no system!$") as caught:
        templates.render(source, {"messages": MESSAGES})
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ messages[0].content.__init__ }}",
        "{{ '' | attr('__class__') }}",
        "{{ ''['__class__'] }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{m.__class__}'.format_map({'m': 1}) }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ tick }}{{ environment.filters }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
        "{{ open('/etc/passwd') }}",
        "{{ lipsum() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% do messages.clear() %}",
        "{{ 'x'.encode() }}",
        "{{ (1).to_bytes(9) }}",
    ],
)
def test_nothing_leads_out_of_the_sandbox(templates: ChatTemplates, source: str) -> None:
    with pytest.raises(ValidationError):
        templates.render(source, {"messages": [{"role": "user", "content": "hi"}]})


GROW = "{% set ns = namespace(a=[1], b=[1], s='ab', n=3) %}{% for i in range(60) %}"
BOMBS = {
    "endless range": "{% for i in range(10**9) %}{% endfor %}",
    "huge range": "{{ range(10**30) | list }}",
    "loops in loops": "{% for i in range(999) %}{% for j in range(999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(9999) %}{% for j in range(9999) if false %}{% endfor %}"
    "{% endfor %}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for i in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "multiplied text": "{{ 'a' * 10**9 }}",
    "multiplied list": "{{ [1] * 10**9 }}",
    "doubled by ~": GROW + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubled by +": GROW + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "lists in lists": GROW + "{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
    "compared lists": GROW + "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}"
    "{% endfor %}{{ ns.a == ns.b }}",
    "dicts in dicts": GROW + "{% set ns.a = {1: ns.a, 2: ns.a} %}{% endfor %}{{ ns.a | tojson }}",
    "views in views": GROW + "{% set ns.a = [{1: ns.a, 2: ns.a}.values()] %}{% endfor %}{{ ns.a }}",
    "arguments kept": GROW[:-len("{% for i in range(60) %}")]
    + "{% macro d() %}{% set ns.a = varargs %}{% endmacro %}"
    "{% for i in range(60) %}{{ d(ns.a, ns.a) }}{% endfor %}{{ ns.a }}",
    "big power": "{{ 10 ** 10000000 }}",
    "big product": GROW + "{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "wide %": "{{ '%1000000000d' % 1 }}",
    "wide %*": "{{ '%*d' % (10**9, 1) }}",
    "wide format": "{{ '{:>1000000000}'.format(1) }}",
    "wide nested format": "{{ '{:>{w}}'.format(1, w=10**9) }}",
    "wide format filter": "{{ '%1000000000d' | format(1) }}",
    "center": "{{ 'a'.center(10**9) }}",
    "center filter": "{{ 'a' | center(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "long join": "{{ ('a' * 99999).join(range(9999) | list) }}",
    "long join of an iterator": "{{ ('a' * 99999).join(range(9999) | map('string')) }}",
    "long join by name": "{{ range(9999) | join(d='a' * 99999) }}",
    "long replace by name": "{{ ('a' * 99999) | replace(old='a', new='b' * 99999) }}",
    "mapped replace": "{{ (['a' * 999] * 999) | map('replace', 'a', 'b' * 999) | list | length }}",
    "long join filter": "{{ range(9999) | join('a' * 99999) }}",
    "long replace": "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "long replace filter": "{{ ('a' * 99999) | replace('', 'b' * 99999) }}",
    "deep indent": "{{ ('\n' * 99999) | indent(9999) }}",
    "tojson indent": "{{ [1] | tojson(indent=10**9) }}",
    "added lists": "{{ ([[1] * 999] * 999) | sum(start=[]) }}",
    "endless output": "{% for i in range(9999) %}{{ 'a' * 99999 }}{% endfor %}",
    "endless block": "{% set x %}{% for i in range(99) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}",
    "many copies": "{% set s = 'ab' * 4000000 %}"
    + "".join(f"{{% set a{i} = s[1:] %}}" for i in range(40)),
    "wide time": "{{ strftime_now('%1000000000Y') }}",
    "long template": "x" * 200_000,
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_cut(templates: ChatTemplates, name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        templates.render(BOMBS[name], {"messages": MESSAGES})
    assert len(str(caught.value)) < 300
    assert templates.render("{{ messages[0].content }}", {"messages": MESSAGES}) == "hi"


def test_slow_template_is_cut_by_time(
    templates: ChatTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10**6, 2))  # every look at the clock is two seconds later
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with pytest.raises(ValidationError, match=r"more than 5 seconds"):
        templates.render("{% for i in range(9) %}{% endfor %}", {})


def test_limits_are_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ChatTemplates(max_seconds=3.0, max_chars=10)
    assert small.render("{{ 'a' * 10 }}", {}) == "a" * 10
    with pytest.raises(ValidationError, match=r"more than 10 characters"):
        small.render("{% for i in range(11) %}a{% endfor %}", {})
    clock = iter(range(0, 10**6, 2))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with pytest.raises(ValidationError, match=r"more than 3 seconds"):
        small.render("{% for i in range(9) %}{% endfor %}", {})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", r"not valid \(line 1\)"),
        ("\n\n{{ x | nothing }}", r"not valid \(line 3\).*nothing"),
        ("{{ absent.attribute }}", "failed: 'absent' is undefined"),
        ("{{ 1 + 'a' }}", "failed: TypeError"),
        ("{{ 1 / 0 }}", "failed: ZeroDivisionError"),
        ("{{ messages['x']['y'] }}", "failed: "),
        ("{{ [] | tojson(1, 2, 3, 4, 5, 6) }}", "failed: TypeError"),
        ("{{ raise_exception(5) }}", "ComplaintError"),
    ],
)
def test_fault_of_a_template_gives_one_short_line(
    templates: ChatTemplates, source: str, message: str
) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        templates.render(source, {"messages": MESSAGES})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_templates_render_in_threads_with_budgets_of_their_own() -> None:
    templates = ChatTemplates(max_seconds=PATIENCE)  # the steps are what counts here
    source = "{% for i in range(100000) %}{% endfor %}{{ n }}"
    results: list[Any] = []

    def work(number: int) -> None:
        # together more steps than one rendering may take
        results.extend(templates.render(source, {"n": number}) for _ in range(3))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(results) == sorted("000111222")


def test_values_of_one_rendering_do_not_reach_the_next(templates: ChatTemplates) -> None:
    templates.render("{% set secret = 5 %}{{ secret }}", {})
    assert templates.render("{{ secret is defined }}", {}) == "False"
