"""Random JSON schemas that can be enforced, and strict reading of what follows them."""

from __future__ import annotations

import json
import random
from typing import Any

WORDS = [
    "a",
    "häßlich",
    "日本",
    "😀 x",
    'with "quotes"',
    "back\\slash",
    "line\nend",
    "tab\t",
    "é",
    "~/",
]
PATTERNS = [
    "^[a-z]{2,4}$",
    "^\\d{3}-\\d{2}$",
    "^(ab|cd)+$",
    "[xyz]",
    "^[A-Zäöü]{1,3}\\.?$",
    "^$|^q",
]


class SchemaMaker:
    """Makes one random schema: nested, with references, and small enough to be completed.

    Args:
        seed: the same seed, the same schema.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = [f"d{i}" for i in range(self._random.randint(0, 3))]

    def make(self) -> dict[str, Any]:
        schema = self._schema(3)
        if self._names:
            # A definition refers to later ones only, so that every text comes to an end.
            names, self._names = self._names, []
            definitions = {}
            for name in reversed(names):
                definitions[name] = self._schema(1)
                self._names.append(name)
            schema["$defs"] = definitions
        return schema

    def _schema(self, depth: int) -> dict[str, Any]:
        kinds = [self._string, self._integer, self._number, self._enum, self._plain]
        if self._names:
            kinds.append(self._reference)
        if depth:
            kinds += [self._object, self._object, self._array]
            kinds += [self._any_of, self._one_of, self._all_of]
        return self._random.choice(kinds)(depth - 1)

    def _string(self, depth: int) -> dict[str, Any]:
        if self._random.random() < 0.5:
            return {"type": "string", "pattern": self._random.choice(PATTERNS), "maxLength": 9}
        low = self._random.randint(0, 4)
        return {"type": "string", "minLength": low, "maxLength": low + self._random.randint(0, 5)}

    def _integer(self, depth: int) -> dict[str, Any]:
        low = self._random.randint(-1000, 1000)
        schema: dict[str, Any] = {"type": "integer", "minimum": low}
        schema["maximum"] = low + self._random.choice([3, 50, 2000])
        if self._random.random() < 0.3:
            schema["multipleOf"] = self._random.choice([2, 3])
        return schema

    def _number(self, depth: int) -> dict[str, Any]:
        low = round(self._random.uniform(-50, 50), self._random.randint(0, 3))
        name = self._random.choice(["minimum", "exclusiveMinimum"])
        return {"type": "number", name: low, "maximum": low + self._random.choice([1, 2.5, 100])}

    def _enum(self, depth: int) -> dict[str, Any]:
        values = [*self._random.sample(WORDS, 3), 1, -2.5, None, True, {"k": ["ü", 0]}, []]
        if self._random.random() < 0.3:
            return {"const": self._random.choice(values)}
        return {"enum": self._random.sample(values, self._random.randint(1, 5))}

    def _plain(self, depth: int) -> dict[str, Any]:
        return {"type": self._random.choice(["boolean", "null", ["boolean", "null"]])}

    def _reference(self, depth: int) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{self._random.choice(self._names)}"}

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(WORDS, self._random.randint(0, 4))
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: self._schema(depth) for name in names},
            "required": [name for name in names if self._random.random() < 0.6],
        }
        chance = self._random.random()
        if chance < 0.6:
            schema["additionalProperties"] = False
        elif chance < 0.8:
            schema["additionalProperties"] = self._schema(0)
            schema["maxProperties"] = len(names) + 1
            schema["required"] = names
        else:
            schema["patternProperties"] = {"^p_[a-z]{1,3}$": self._schema(0)}
            schema["additionalProperties"] = False
        if self._random.random() < 0.3:
            schema |= {"title": "not enforced", "description": "nor this", "x-order": 1}
        return schema

    def _array(self, depth: int) -> dict[str, Any]:
        low = self._random.randint(0, 2)
        schema: dict[str, Any] = {"type": "array", "items": self._schema(depth)}
        schema |= {"minItems": low, "maxItems": low + self._random.randint(0, 2)}
        if self._random.random() < 0.3:
            schema["prefixItems"] = [self._schema(0), self._schema(0)]
        return schema

    def _any_of(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self._schema(depth) for _ in range(self._random.randint(1, 3))]}

    def _one_of(self, depth: int) -> dict[str, Any]:
        return {"oneOf": [self._string(0), self._integer(0), {"type": "null"}]}

    def _all_of(self, depth: int) -> dict[str, Any]:
        """Parts that hold together, in an order of keywords that varies."""
        if self._random.random() < 0.4:
            whole = self._integer(0)
            return {"allOf": [whole, {"minimum": whole["minimum"] + 1}]}
        names = self._random.sample(WORDS, 4)
        first, second = (
            {"type": "object", "properties": {name: self._schema(0) for name in pair},
             "required": [pair[0]]}
            for pair in (names[:2], names[2:])
        )  # fmt: skip
        whole = {"allOf": [first, second], "properties": {names[0]: True, names[3]: True}}
        if self._random.random() < 0.5:
            # Closed: only what is named right here may come, so not the first of the second part.
            second["required"] = []
            whole["additionalProperties"] = False
        pairs = list(whole.items())
        self._random.shuffle(pairs)
        return dict(pairs)


def read_strictly(text: str) -> Any:
    """A JSON text as values: nothing but JSON, no control characters in strings."""
    return json.loads(text, parse_constant=_refuse, strict=True)


def _refuse(name: str) -> None:
    raise ValueError(name)
