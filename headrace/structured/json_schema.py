"""Which JSON schemas can be enforced. Anything else is refused with the place where it stands."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import quote, unquote

from headrace.errors import ValidationError, shown
from headrace.structured.patterns import without_nul

ANNOTATIONS = frozenset({
    "$comment", "$schema", "title", "description", "default", "example", "examples", "deprecated",
    "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema",
    "discriminator",
})  # fmt: skip
"""Keywords that constrain nothing: taken out."""
OPTIONS_KEY = "x-guidance"
"""Where the library that compiles schemas looks for its options: ours only."""
MAX_COUNT = 2**31 - 1
MAX_EXACT = 2**53
"""Bounds beyond this are rounded where they are compiled, so they could not be kept exactly."""
LEAST = 1e-30
"""Stands for 0 as a bound that is left out: 0 itself would be let in beside some other bounds."""
MAX_MULTIPLE = 10_000
"""A multipleOf of n digits' worth needs as many states; larger ones take seconds to compile."""
MAX_PROPERTIES = 1000
TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SUBSCHEMAS = ("items", "additionalProperties")
_LEFT_OUT = object()


class SchemaCleaner:
    """Checks a schema and gives the copy that is compiled: annotations and neutral keywords gone.

    Args:
        field: the parameter that holds the schema, for messages.
        max_depth: nesting of lists and objects.
        closes_objects: whether objects that say nothing of it allow no further properties.
    """

    def __init__(self, field: str, *, max_depth: int, closes_objects: bool = False) -> None:
        self._field = field
        self._max_depth = max_depth
        self._closes_objects = closes_objects
        self._root: Any = None

    def clean(self, schema: object) -> dict[str, Any]:
        """The schema to compile.

        Raises:
            ValidationError: it is no schema, or holds what could not be enforced.
        """
        if depth(schema) > self._max_depth:
            self._refuse("", f"is nested deeper than {self._max_depth} levels")
        self._root = schema
        if isinstance(schema, dict) and isinstance(schema.get("$id"), str):
            # All references are within the document, so its own address is of no consequence.
            schema = {key: value for key, value in schema.items() if key != "$id"}
        clean = self._schema(schema, "")
        if clean is False:
            self._refuse("", "is false: nothing at all would be allowed")
        return {} if clean is True else clean

    def _refuse(self, path: str, why: str) -> NoReturn:
        at = f"the schema at #{path}" if path else "the schema"
        raise ValidationError(f"{self._field}: {at} {why}", param=self._field)

    def _schema(self, schema: object, path: str) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            self._refuse(path, f"must be an object, got {shown(schema)}")
        clean: dict[str, Any] = {}
        for key, value in schema.items():
            if not isinstance(key, str):
                self._refuse(path, f"has a key that is no string: {shown(key)}")
            if key in ANNOTATIONS or (key.startswith("x-") and key != OPTIONS_KEY):
                continue
            check = _KEYWORDS.get(key)
            if check is None:
                self._refuse(path, f"uses {shown(key)}, which is not supported: it would be "
                             "neither enforced nor ignored")  # fmt: skip
            result = check(self, value, f"{path}/{_escaped(key)}", schema)
            if result is not _LEFT_OUT:
                clean[key] = result
        if self._closes_objects and _describes_object(clean):
            clean.setdefault("additionalProperties", False)
        return clean

    # One method per kind of value: what is compiled, or _LEFT_OUT.

    def _subschema(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            self._refuse(path, "must be a schema; for a list of schemas use prefixItems")
        return self._schema(value, path)

    def _schemas(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        if not isinstance(value, list) or not value:
            self._refuse(path, "must be a non-empty list of schemas")
        return [self._schema(item, f"{path}/{i}") for i, item in enumerate(value)]

    def _named(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            self._refuse(path, "must map names to schemas")
        if len(value) > MAX_PROPERTIES:
            self._refuse(path, f"holds {len(value)} names, at most {MAX_PROPERTIES} are allowed")
        return {key: self._schema(item, f"{path}/{_escaped(key)}") for key, item in value.items()}

    def _patterns(self, value: object, path: str, around: Mapping[str, Any]) -> Any:
        named = self._named(value, path, around)
        return {
            self._pattern(key, f"{path}/{_escaped(key)}", around): schema
            for key, schema in named.items()
        }

    def _type(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        kinds = value if isinstance(value, list) else [value]
        if not kinds or not all(isinstance(kind, str) and kind in TYPES for kind in kinds):
            self._refuse(path, f"must be one or more of {', '.join(sorted(TYPES))}, "
                         f"got {shown(value)}")  # fmt: skip
        return value

    def _reference(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            self._refuse(path, f"must point into the schema itself (#/...), got {shown(value)}")
        pointer = unquote(value[1:])
        if not _leads_to_schema(self._root, pointer):
            self._refuse(path, f"points to {shown(value)}, where no schema is")
        try:
            return "#" + quote(pointer, safe="/~")  # names are often written as they are
        except UnicodeEncodeError:
            self._refuse(path, "holds a lone surrogate")

    def _enum(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        if not isinstance(value, list) or not value:
            self._refuse(path, "must be a non-empty list of values")
        for i, item in enumerate(value):
            self._check_value(item, f"{path}/{i}")
        return value

    def _constant(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        self._check_value(value, path)
        return value

    def _check_value(self, value: object, path: str) -> None:
        match value:
            case bool() | None | str():
                pass
            case int() | float():
                if not math.isfinite(value):
                    self._refuse(path, "holds a number that JSON cannot say")
                if abs(value) > MAX_EXACT:
                    self._refuse(path, "holds a number beyond +-2**53, which could not be "
                                 f"enforced exactly: {shown(value)}")  # fmt: skip
            case list():
                for item in value:
                    self._check_value(item, path)
            case dict():
                for item in value.values():
                    self._check_value(item, path)
            case _:
                self._refuse(path, f"holds {shown(value)}, which is no JSON value")

    def _count(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
            self._refuse(path, f"must be an integer in [0, {MAX_COUNT}], got {shown(value)}")
        return value

    def _least_properties(self, value: object, path: str, around: Mapping[str, Any]) -> Any:
        """Names beyond the listed ones may come twice, and would count once."""
        least = self._count(value, path, around)
        required = around.get("required", [])
        num_required = len(set(required)) if isinstance(required, list) else 0
        if least > max(1, num_required):
            self._refuse(path, "cannot be enforced above 1, unless as many properties are required")
        return least if least > num_required else _LEFT_OUT

    def _number(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._refuse(path, f"must be a number, got {shown(value)}")
        if not abs(value) <= MAX_EXACT:
            self._refuse(path, f"must lie within +-2**53 to be enforced, got {shown(value)}")
        return value

    def _above(self, value: object, path: str, around: Mapping[str, Any]) -> Any:
        return self._number(value, path, around) or LEAST

    def _below(self, value: object, path: str, around: Mapping[str, Any]) -> Any:
        return self._number(value, path, around) or -LEAST

    def _multiple(self, value: object, path: str, around: Mapping[str, Any]) -> Any:
        number = self._number(value, path, around)
        digits = format(number, "f").rstrip("0").replace(".", "") if number > 0 else ""
        if not digits or int(digits) > MAX_MULTIPLE:
            self._refuse(path, f"must be above 0 and have at most {len(str(MAX_MULTIPLE)) - 1} "
                         f"digits to be enforced, got {shown(value)}")  # fmt: skip
        return number

    def _names(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._refuse(path, "must be a list of names")
        return value

    def _pattern(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        if not isinstance(value, str) or "\0" in value:
            self._refuse(path, f"must be a regular expression, got {shown(value)}")
        try:
            return without_nul(value)
        except ValueError as error:
            self._refuse(path, str(error))

    def _format(self, value: object, path: str, around: Mapping[str, Any]) -> Any:
        if not isinstance(value, str):
            self._refuse(path, f"must be the name of a format, got {shown(value)}")
        kinds = around.get("type", "string")
        if "string" in (kinds if isinstance(kinds, list) else [kinds]):
            return value
        if value.startswith(("int", "uint")):
            self._refuse(path, f"is {shown(value)}, which is not enforced for numbers; "
                         "use minimum and maximum")  # fmt: skip
        return _LEFT_OUT  # formats of strings, and those that every number has

    def _not_unique(self, value: object, path: str, _: Mapping[str, Any]) -> Any:
        if value is not False:
            self._refuse(path, "is not supported: that items differ cannot be enforced")
        return _LEFT_OUT


_Check = Callable[[SchemaCleaner, Any, str, Mapping[str, Any]], Any]
_KEYWORDS: dict[str, _Check] = {
    **dict.fromkeys(_SUBSCHEMAS, SchemaCleaner._subschema),
    **dict.fromkeys(_SCHEMA_LISTS, SchemaCleaner._schemas),
    **dict.fromkeys(_SCHEMAS_BY_NAME, SchemaCleaner._named),
    **dict.fromkeys(
        ("minItems", "maxItems", "minLength", "maxLength", "maxProperties"), SchemaCleaner._count
    ),
    **dict.fromkeys(("minimum", "maximum"), SchemaCleaner._number),
    "exclusiveMinimum": SchemaCleaner._above,
    "exclusiveMaximum": SchemaCleaner._below,
    "patternProperties": SchemaCleaner._patterns,
    "type": SchemaCleaner._type,
    "$ref": SchemaCleaner._reference,
    "enum": SchemaCleaner._enum,
    "const": SchemaCleaner._constant,
    "minProperties": SchemaCleaner._least_properties,
    "multipleOf": SchemaCleaner._multiple,
    "required": SchemaCleaner._names,
    "pattern": SchemaCleaner._pattern,
    "format": SchemaCleaner._format,
    "uniqueItems": SchemaCleaner._not_unique,
}


def read_json(text: str, field: str, max_depth: int) -> Any:
    """A JSON text as values.

    Raises:
        ValidationError: it is none, or nested too deep.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValidationError(
            f"{field} is nested deeper than {max_depth} levels", param=field
        ) from None
    except ValueError as error:
        raise ValidationError(f"{field} is not JSON: {error}", param=field) from None


def write_json(value: object, field: str) -> str:
    """Values as a JSON text.

    Raises:
        ValidationError: they are none that JSON can say.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"{field} holds a lone surrogate", param=field) from None
    except RecursionError:
        raise ValidationError(f"{field} is nested too deep", param=field) from None
    except (TypeError, ValueError) as error:
        raise ValidationError(f"{field} is not JSON: {error}", param=field) from None
    return text


def depth(value: object) -> int:
    """How many lists and objects stand within each other."""
    level, current = 0, [value]
    while current:
        level += 1
        below: list[object] = []
        for item in current:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
        current = below
    return level - 1


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _escaped(key: str) -> str:
    """A key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _leads_to_schema(root: object, pointer: str) -> bool:
    """Whether a pointer goes through places that hold schemas only, to one that exists."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    target = root
    while parts:
        keyword = parts.pop(0)
        if not isinstance(target, dict) or keyword not in target:
            return False
        target = target[keyword]
        if keyword in _SUBSCHEMAS:
            continue
        name = parts.pop(0) if parts else None
        if keyword in _SCHEMAS_BY_NAME and isinstance(target, dict) and name in target:
            target = target[name]
        elif keyword in _SCHEMA_LISTS and isinstance(target, list) and name is not None:
            if not (name.isascii() and name.isdigit()) or int(name) >= len(target):
                return False
            target = target[int(name)]
        else:
            return False
    return isinstance(target, (dict, bool))


def _describes_object(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type")
    return (
        kinds == "object"
        or "properties" in schema
        or (isinstance(kinds, list) and "object" in kinds)
    )
