"""Schemas of objects read as if they forbade undeclared members, where nothing is said of these."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["closed"]

_SPEAKS_OF_OTHERS: Final = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_IN_PLACE: Final = (
    *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "not"),
    *("dependentSchemas", "dependencies"),
)
# Below these, a smaller part can make the whole larger, so they stay as they are, and so do the definitions that they
# refer to; below `allOf`, it could leave nothing.
_NOT_MONOTONE: Final = ("not", "if", "oneOf", "contains", "dependentSchemas", "dependencies")
_MAPS: Final = ("properties", "patternProperties")
_DEFINITIONS: Final = ("$defs", "definitions")
_SINGLE: Final = ("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")
_LISTS: Final = ("items", "prefixItems")


def closed(schema: Any, *, tagged: bool = False) -> Any:
    """A copy in which each object with declared members has no others, unless the schema speaks of others.

    Its language is a subset of that of ``schema``.  An object with ``allOf``, ``$ref`` or another applicator beside its
    ``properties`` stays open, and so do all definitions where a ``not``, ``if``, ``oneOf`` or the like refers to any.

    Args:
        schema: a schema as ``json.loads`` gives it.
        tagged: whether the alternatives of a ``oneOf`` with a ``discriminator`` beside it are closed too.

    Complexity: linear.
    """
    maps = _MAPS if _refers_from_within(schema, tagged=tagged) else (*_MAPS, *_DEFINITIONS)
    made: list[Any] = [None]
    work: list[tuple[Any, Any, Any]] = [(made, 0, schema)]  # where the copy goes
    while work:
        home, key, held = work.pop()
        if not isinstance(held, dict):
            home[key] = held
            continue
        copy = home[key] = dict(held)
        for name in maps:
            if isinstance(copy.get(name), dict):
                copy[name] = dict(copy[name])
                work += [(copy[name], part, value) for part, value in copy[name].items()]
        for name in _SINGLE:
            if isinstance(copy.get(name), dict):
                work.append((copy, name, copy[name]))
        lists = list(_LISTS)
        if "properties" not in copy:
            lists.append("anyOf")
            if tagged and "discriminator" in copy:
                lists.append("oneOf")
        for name in lists:
            if isinstance(copy.get(name), list):
                copy[name] = list(copy[name])
                work += [(copy[name], at, value) for at, value in enumerate(copy[name])]
        is_open = not any(name in copy for name in (*_SPEAKS_OF_OTHERS, *_IN_PLACE))
        if isinstance(copy.get("properties"), dict) and is_open:
            copy["additionalProperties"] = False
    return made[0]


def _refers_from_within(schema: Any, *, tagged: bool) -> bool:
    """Whether there is a reference below a keyword that is not monotone.  Linear."""
    work: list[tuple[Any, bool]] = [(schema, False)]
    while work:
        held, is_within = work.pop()
        if isinstance(held, list):
            work += [(part, is_within) for part in held]
        if not isinstance(held, dict):
            continue
        if is_within and ("$ref" in held or "$dynamicRef" in held or "$recursiveRef" in held):
            return True
        for name, part in held.items():
            is_tagged = tagged and name == "oneOf" and "discriminator" in held
            work.append((part, is_within or (name in _NOT_MONOTONE and not is_tagged)))
    return False
