"""The JSON Schemas that records follow, and ``Task``: one kind of record with the texts that tell it."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

from training.embedded_diffusion.values import ValueSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Record", "Task"]

Record: TypeAlias = "dict[str, Any]"
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_FIELD = re.compile(r"\{([a-z_.]+)\}")


@final
@dataclass(frozen=True)
class Task:
    """One kind of record.

    Attributes:
        name: what a prompt calls it.
        schema: the JSON Schema of a record, draft 2020-12.
        draw: draws a record, with its properties in the order of the schema.
        texts: templates. ``{field}`` is a value, or one of its wordings; a part in brackets is left out where a field
            in it is missing.
        wordings: for a field, texts for each of its values; the keys are the values as JSON.
    """

    name: str
    schema: Mapping[str, Any]
    draw: Callable[[ValueSampler], Record]
    texts: tuple[str, ...]
    wordings: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def tell(self, record: Record, chance: random.Random) -> str:
        """Return a prompt that tells the record: the name of the task and a text."""
        text = chance.choice(self.texts)
        text = _OPTIONAL.sub(lambda found: self._told(found[1], record), text)
        told = _FIELD.sub(lambda found: self._worded(found[1], record, chance), text)
        return f"{self.name}: {told}"

    def _told(self, part: str, record: Record) -> str:
        return part if all(_value(record, path) is not None for path in _FIELD.findall(part)) else ""

    def _worded(self, path: str, record: Record, chance: random.Random) -> str:
        value = _value(record, path)
        if path in self.wordings:
            return chance.choice(self.wordings[path][json.dumps(value)])
        if isinstance(value, list):
            return _enumerated([_spoken(each) for each in value])
        return _spoken(value)


def _value(record: Record, path: str) -> Any:
    value: Any = record
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _spoken(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(_spoken(each) for each in value.values())
    return value if isinstance(value, str) else json.dumps(value)


def _enumerated(texts: list[str]) -> str:
    return " and ".join(part for part in (", ".join(texts[:-1]), texts[-1]) if part)


# Schemas.


def object_schema(properties: Record, optional: str = "") -> Record:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional.split()],
        "additionalProperties": False,
    }


def record_schema(properties: Record, optional: str = "") -> Record:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **object_schema(properties, optional)}


def integer_schema(low: int, high: int) -> Record:
    return {"type": "integer", "minimum": low, "maximum": high}


def enum_schema(*values: str) -> Record:
    return {"enum": list(values)}


def pattern_schema(pattern: str) -> Record:
    return {"type": "string", "pattern": pattern}


TEXT = {"type": "string", "minLength": 1, "maxLength": 40}
NUMBER = {"type": "number"}
BOOLEAN = {"type": "boolean"}
DATE = {"type": "string", "format": "date"}
TIME = pattern_schema("^([01][0-9]|2[0-3]):[0-5][0-9]$")
EMAIL = pattern_schema(
    "^[a-z]{1,24}@[a-z]{1,12}[.][a-z]{2,3}$"
)  # format "email" takes some 20 000 states of an automaton

CURRENCIES = {"EUR": "euros", "USD": "dollars", "GBP": "pounds", "JPY": "yen", "CHF": "francs"}
CURRENCY = enum_schema(*CURRENCIES)
CURRENCY_WORDS = {json.dumps(code): (word, code) for code, word in CURRENCIES.items()}
COUNTRIES = {
    "AT": "Austria", "BR": "Brazil", "CH": "Switzerland", "DE": "Germany", "ES": "Spain", "FR": "France",
    "IN": "India", "IT": "Italy", "JP": "Japan", "KE": "Kenya", "NL": "Netherlands", "PL": "Poland",
}  # fmt: skip
AIRLINES = ("AF", "BA", "CX", "DL", "EK", "FR", "IB", "JL", "KL", "LH", "LX", "OS", "QF", "SK", "SQ", "TK", "UA", "VY")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def yes_no(yes: tuple[str, ...], no: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    return {"true": yes, "false": no}


def worded(**wordings: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    return {json.dumps(value): texts for value, texts in wordings.items()}


SKIES = {
    "sunny": ("clear sky", "bright sun"),
    "cloudy": ("overcast", "grey clouds"),
    "rain": ("showers", "it pours"),
    "snow": ("flurries", "white flakes"),
    "fog": ("mist", "poor sight"),
}
CHANNELS = {
    "email": ("prefers email", "write a mail"),
    "phone": ("prefers a call", "please ring"),
    "post": ("prefers letters", "by post"),
}
ROOMS = {
    "single": ("single", "room for one"),
    "double": ("double", "room for two"),
    "suite": ("suite", "best room"),
}
REPEATS = {
    "none": ("once", "just this time"),
    "daily": ("every day", "each morning"),
    "weekly": ("every week", "once a week"),
}
QUANTITIES = {
    "temperature": ("degrees", "temperature"),
    "pressure": ("hectopascal", "pressure"),
    "humidity": ("percent", "humidity"),
}
SEVERITIES = {
    "low": ("minor", "cosmetic"),
    "high": ("serious", "urgent"),
    "critical": ("blocker", "drop everything"),
}
