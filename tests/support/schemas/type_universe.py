"""Random annotated types with random values."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import ipaddress
import json
import pathlib
import random
import string
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Union

import pydantic
from pydantic import ConfigDict, Field, create_model
from typing_extensions import TypedDict

import structgen as sg

__all__ = ["Kind", "Universe", "spaced", "written"]


class Kind(NamedTuple):
    """A type.

    Attributes:
        annotation: the type.
        make: makes a value.
        json: the type of its JSON: ``"number"``, ``"string"``, ``"array"``, ``"object"``, ``"other"``, ``"any"``.
        is_hashable: whether its values can be in a set.
    """

    annotation: Any
    make: Callable[[], Any]
    json: str
    is_hashable: bool = True


_PATTERNS = {
    "^[a-c]{2,4}$": lambda rng: "".join(rng.choices("abc", k=rng.randint(2, 4))),
    r"\d": lambda rng: f"n{rng.randrange(100)}",
    r"^\S+@x\.org$": lambda rng: f"{rng.choice('äb+')}@x.org",
    r"^(?:yes|no)\b": lambda rng: rng.choice(["yes", "no, never"]),
    r"^[^\d\s]*$": lambda rng: rng.choice(["", "abc", "é-"]),
}
_EPOCH = dt.datetime(2001, 2, 3, 4, 5, 6)
_ZONES = [dt.UTC, dt.timezone(dt.timedelta(hours=-9, minutes=-30)), dt.timezone(dt.timedelta(hours=13))]
_NESTED = 'start: "[" start "]" start | "é" start |'


class Universe:
    """Types sampled with one source of randomness."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._names = 0

    def model(self, depth: int = 2) -> Kind:
        """A pydantic model."""
        return self._model(depth)

    def kind(self, depth: int) -> Kind:
        """Any type whose containers nest at most ``depth`` deep."""
        if depth == 0 or self.rng.random() < 0.45:
            return self.rng.choice(self._scalars())()
        return self.rng.choice(self._containers())(depth - 1)

    # Scalars

    def _scalars(self) -> list[Callable[[], Kind]]:
        return [
            self._int,
            self._float,
            self._text,
            self._pattern,
            self._literal,
            self._enum,
            self._decimal,
            self._date,
            self._datetime,
            self._time,
            self._timedelta,
            self._uuid,
            self._address,
            self._bytes,
            self._url,
            self._marked,
            self._simple,
        ]

    def _simple(self) -> Kind:
        rng = self.rng
        path = Kind(pathlib.Path, lambda: pathlib.Path(*rng.choices(["a", "b.c", ".."], k=2)), "string")
        boolean = Kind(bool, lambda: rng.random() < 0.5, "other")
        return rng.choice([boolean, Kind(None, lambda: None, "other"), path, Kind(Any, self._json, "any", False)])

    def _json(self) -> Any:
        return self.rng.choice([None, True, 3, "x", [1, "a", None], {"k": [{}], "l": 0.5}])

    def _int(self) -> Kind:
        rng = self.rng
        least = rng.choice([None, rng.randint(-200, 50)])
        most = rng.choice([None, (least or 0) + rng.randint(20, 300)])
        step = rng.choice([None, None, rng.randint(2, 9)])
        strict = rng.random() < 0.3
        names = ("gt", "lt") if strict else ("ge", "le")
        bounds = {name: bound for name, bound in zip(names, (least, most), strict=True) if bound is not None}
        low = (least if least is not None else (most or 0) - 100) + strict
        high = (most if most is not None else low + 100) - strict
        kind = NewType("Number", int) if rng.random() < 0.1 else int
        if step:
            bounds["multiple_of"] = step
        first, last = -(-low // (step or 1)), high // (step or 1)
        return Kind(
            Annotated[kind, Field(**bounds)] if bounds else kind,
            lambda: rng.randint(first, last) * (step or 1),
            "number",
        )

    def _float(self) -> Kind:
        rng = self.rng
        low = rng.choice([-1e6, -2.5, 0.0, 0.125])
        high = low + rng.choice([1.5, 1e3, 1e9])
        names = rng.sample(["ge", "le"], rng.randint(0, 2))
        bounds = {name: {"ge": low, "le": high}[name] for name in names}
        return Kind(Annotated[float, Field(**bounds)] if bounds else float, lambda: rng.uniform(low, high), "number")

    def _text(self) -> Kind:
        rng = self.rng
        least, more = rng.choice([0, 0, 1, 3]), rng.choice([None, 0, 5])
        bounds = {"min_length": least} | ({} if more is None else {"max_length": least + more})
        alphabet = string.ascii_letters + 'é"\\\n/\u2028\U0001f600 '

        def make() -> str:
            return "".join(rng.choices(alphabet, k=least + rng.randint(0, 4 if more is None else more)))

        return Kind(Annotated[str, Field(**bounds)] if rng.random() < 0.8 else str, make, "string")

    def _pattern(self) -> Kind:
        rng = self.rng
        pattern, make = rng.choice(list(_PATTERNS.items()))
        return Kind(Annotated[str, Field(pattern=pattern)], lambda: make(rng), "string")

    def _marked(self) -> Kind:
        rng = self.rng

        def nested() -> str:
            return rng.choice(["", "é", "[]", "[[é]é][]é"])

        marked = [
            (Annotated[str, sg.grammars.Regex(r"[a-z]\d+")], lambda: f"q{rng.randrange(1000)}"),
            (Annotated[str, sg.grammars.Regex(r'["\\]*', dialect="ecma")], lambda: rng.choice(["", '"\\', '""'])),
            (Annotated[str, sg.grammars.Regex("x+"), Field(max_length=4)], lambda: "x" * rng.randint(1, 4)),
            (Annotated[str, sg.grammars.Lark(_NESTED)], nested),
            (Annotated[str, sg.select(["on", "off"]) + sg.literal("!")], lambda: rng.choice(["on!", "off!"])),
        ]
        return Kind(*rng.choice(marked), "string")

    def _literal(self) -> Kind:
        values = self.rng.sample(["a", "b\n", "é", "", "42"], self.rng.randint(1, 3))
        return Kind(Literal[tuple(values)], lambda: self.rng.choice(values), "string")

    def _enum(self) -> Kind:
        self._names += 1
        if self.rng.random() < 0.5:
            numbers = enum.IntEnum(f"Numbers{self._names}", {"A": 1, "B": -7, "C": 300})
            return Kind(numbers, lambda: self.rng.choice(list(numbers)), "other")
        texts = enum.Enum(f"Texts{self._names}", {"A": "a", "B": 'b"', "C": "see"})
        return Kind(texts, lambda: self.rng.choice(list(texts)), "string")

    def _decimal(self) -> Kind:
        rng = self.rng
        places, whole = rng.randint(0, 3), rng.randint(1, 4)
        bounds: dict[str, Any] = {}
        if rng.random() < 0.6:
            bounds["decimal_places"] = places
        if rng.random() < 0.6:
            bounds["max_digits"] = whole + places
        low, high = 0, 10 ** (whole + places) - 1
        if rng.random() < 0.4:
            bounds["ge"] = Decimal(low).scaleb(-places)
            bounds["lt"] = Decimal(high + 1).scaleb(-places)
        else:
            low = -high
        return Kind(
            Annotated[Decimal, Field(**bounds)] if bounds else Decimal,
            lambda: Decimal(rng.randint(low, high)).scaleb(-places),
            "number and string",
        )

    def _date(self) -> Kind:
        rng = self.rng
        first = dt.date(rng.randint(1, 2030), rng.randint(1, 12), rng.randint(1, 28))
        days = rng.choice([1, 30, 400, 50_000])
        names = rng.sample(["ge", "lt"], rng.randint(0, 2))
        bounds = {name: {"ge": first, "lt": first + dt.timedelta(days=days)}[name] for name in names}
        annotation = Annotated[dt.date, Field(**bounds)] if bounds else dt.date
        return Kind(annotation, lambda: first + dt.timedelta(days=rng.randrange(days)), "string")

    def _datetime(self) -> Kind:
        rng = self.rng
        kind = rng.choice([dt.datetime, pydantic.AwareDatetime, pydantic.NaiveDatetime])

        def make() -> dt.datetime:
            moment = _EPOCH + dt.timedelta(seconds=rng.randrange(10**9), microseconds=rng.choice([0, 7, 500_000]))
            is_aware = kind is pydantic.AwareDatetime or (kind is dt.datetime and rng.random() < 0.5)
            return moment.replace(tzinfo=rng.choice(_ZONES)) if is_aware else moment

        return Kind(kind, make, "string")

    def _time(self) -> Kind:
        rng = self.rng
        return Kind(
            dt.time,
            lambda: dt.time(rng.randrange(24), rng.randrange(60), rng.randrange(60), rng.choice([0, 1, 10**5])),
            "string",
        )

    def _timedelta(self) -> Kind:
        rng = self.rng
        return Kind(
            dt.timedelta,
            lambda: dt.timedelta(days=rng.randint(-3000, 3000), microseconds=rng.choice([0, 1, 10**7, 12_345_600_000])),
            "string",
        )

    def _uuid(self) -> Kind:
        rng = self.rng
        version = rng.choice([None, 1, 3, 4, 5])
        kind = getattr(pydantic, f"UUID{version}") if version else uuid.UUID
        return Kind(kind, lambda: uuid.UUID(int=rng.getrandbits(128), version=version), "string")

    def _address(self) -> Kind:
        rng = self.rng

        def network() -> ipaddress.IPv4Network:
            return ipaddress.IPv4Network((rng.getrandbits(32), rng.randint(0, 32)), strict=False)

        return rng.choice(
            [
                Kind(ipaddress.IPv4Address, lambda: ipaddress.IPv4Address(rng.getrandbits(32)), "string"),
                Kind(ipaddress.IPv6Address, lambda: ipaddress.IPv6Address(rng.getrandbits(128)), "string"),
                Kind(ipaddress.IPv4Network, network, "string"),
                Kind(ipaddress.IPv6Interface, lambda: ipaddress.IPv6Interface((rng.getrandbits(128), 64)), "string"),
            ]
        )

    def _bytes(self) -> Kind:
        rng = self.rng
        least = rng.randint(0, 3)
        bounded = Annotated[bytes, Field(min_length=least, max_length=least + 4)]

        def text() -> bytes:
            return ("é" * (least // 2) + "x" * (least % 2 + rng.randint(0, 2))).encode()

        return rng.choice(
            [Kind(bounded, text, "string"), Kind(pydantic.Base64Bytes, lambda: rng.randbytes(least), "string")]
        )

    def _url(self) -> Kind:
        rng = self.rng
        kind = rng.choice([pydantic.AnyUrl, pydantic.HttpUrl])
        parts = ["", "/", "/a/b.c?d=e&f#g", ":8080/%20x", "/?q=%C3%A9"]
        return Kind(
            kind, lambda: kind(f"https://{rng.choice(['x.org', 'a-b.c', '10.0.0.1'])}{rng.choice(parts)}"), "string"
        )

    # Containers

    def _containers(self) -> list[Callable[[int], Kind]]:
        return [
            self._list,
            self._set,
            self._tuple,
            self._dict,
            self._optional,
            self._union,
            self._text_of_json,
            self._model,
            self._model,
            self._dataclass,
            self._typed_dict,
            self._named_tuple,
            self._tagged,
        ]

    def _some(self, make: Callable[[], Any], least: int, most: int) -> list[Any]:
        return [make() for _ in range(self.rng.randint(least, most))]

    def _list(self, depth: int) -> Kind:
        inner = self.kind(depth)
        least = self.rng.choice([0, 0, 1])
        most = least + self.rng.randint(1, 3)
        kind, build = self.rng.choice(
            [(list, list), (Sequence, list), (collections.deque, collections.deque), (tuple, tuple)]
        )
        annotation = kind[inner.annotation, ...] if kind is tuple else kind[inner.annotation]  # type: ignore[index]
        bounded = (
            Annotated[annotation, Field(min_length=least, max_length=most)] if self.rng.random() < 0.5 else annotation
        )
        return Kind(bounded, lambda: build(self._some(inner.make, least, most)), "array", False)

    def _set(self, depth: int) -> Kind:
        inner = self.kind(0)
        while not inner.is_hashable:
            inner = self.kind(0)
        kind = self.rng.choice([set, frozenset])
        return Kind(kind[inner.annotation], lambda: kind(self._some(inner.make, 0, 3)), "array", False)

    def _tuple(self, depth: int) -> Kind:
        inner = [self.kind(depth) for _ in range(self.rng.randint(0, 3))]
        annotations = tuple(one.annotation for one in inner)
        return Kind(tuple[annotations or ()], lambda: tuple(one.make() for one in inner), "array", False)  # type: ignore[misc]

    def _dict(self, depth: int) -> Kind:
        keys = self.rng.choice(
            [self._text, self._pattern, self._int, self._literal, self._enum, self._date, self._uuid, self._decimal]
        )()
        values = self.kind(depth)
        return Kind(
            dict[keys.annotation, values.annotation],  # type: ignore[name-defined]
            lambda: dict(self._some(lambda: (keys.make(), values.make()), 0, 2)),
            "object",
            False,
        )

    def _optional(self, depth: int) -> Kind:
        inner = self.kind(depth)
        annotation = Union[inner.annotation, None]  # noqa: UP007  an annotation may be None itself
        return Kind(annotation, lambda: self.rng.choice([None, inner.make()]), "any", inner.is_hashable)

    def _union(self, depth: int) -> Kind:
        """Types that JSON distinguishes, so that a value is read back as it was.

        pydantic reads a number as a duration rather than as a member of an ``IntEnum``, and does not write ``Json`` in
        a union as it reads it.
        """
        kinds: dict[str, Kind] = {}
        for _ in range(6):
            one = self.kind(depth)
            if one.json in {"number", "string", "array", "object"}:
                kinds.setdefault(one.json, one)
        chosen = list(kinds.values())[:3] or [self._text()]
        annotation = Union[tuple(one.annotation for one in chosen)]  # noqa: UP007
        return Kind(annotation, lambda: self.rng.choice(chosen).make(), "any", all(one.is_hashable for one in chosen))

    def _text_of_json(self, depth: int) -> Kind:
        inner = self.kind(0)
        while "Len" in repr(inner.annotation) and "bytes" in repr(inner.annotation):  # which is refused there
            inner = self.kind(0)
        return Kind(pydantic.Json[inner.annotation], inner.make, "other", False)  # type: ignore[misc]

    def _fields(self, depth: int) -> dict[str, Kind]:
        return {f"f{index}": self.kind(depth) for index in range(self.rng.randint(1, 4))}

    def _name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def _model(self, depth: int) -> Kind:
        rng = self.rng
        fields = self._fields(depth)
        optional = {name for name in fields if rng.random() < 0.3}
        defaults = {name: fields[name].make() for name in optional}
        definitions: dict[str, Any] = {}
        for name, kind in fields.items():
            alias = rng.choice([None, None, f"{name}-é"])
            given = {"alias": alias} if alias else {}
            if name in optional:
                given["default"] = defaults[name]
            definitions[name] = (kind.annotation, Field(**given))
        config = ConfigDict(
            extra=rng.choice(["ignore", "forbid"]),
            populate_by_name=True,
            serialize_by_alias=True,
            frozen=False,
        )
        model = create_model(self._name("Model"), __config__=config, **definitions)

        def make() -> Any:
            chosen = {name for name in fields if name not in optional or rng.random() < 0.5}
            return model.model_construct(**{name: fields[name].make() for name in chosen})

        return Kind(model, make, "object", False)

    def _dataclass(self, depth: int) -> Kind:
        fields = self._fields(depth)
        made = dataclasses.make_dataclass(
            self._name("Record"), [(name, kind.annotation) for name, kind in fields.items()]
        )
        return Kind(made, lambda: made(**{name: kind.make() for name, kind in fields.items()}), "object", False)

    def _typed_dict(self, depth: int) -> Kind:
        fields = self._fields(depth)
        optional = {name for name in fields if self.rng.random() < 0.4}
        made = TypedDict(  # type: ignore[operator]
            self._name("Row"),
            {
                name: NotRequired[kind.annotation] if name in optional else kind.annotation
                for name, kind in fields.items()
            },
        )

        def make() -> dict[str, Any]:
            return {
                name: kind.make() for name, kind in fields.items() if name not in optional or self.rng.random() < 0.5
            }

        return Kind(made, make, "object", False)

    def _named_tuple(self, depth: int) -> Kind:
        fields = self._fields(depth)
        made = NamedTuple(self._name("Line"), [(name, kind.annotation) for name, kind in fields.items()])  # type: ignore[misc]
        return Kind(made, lambda: made(*(kind.make() for kind in fields.values())), "array", False)

    def _tagged(self, depth: int) -> Kind:
        kinds = {tag: self.kind(depth) for tag in ("one", "two")}
        models = {
            tag: create_model(self._name("Tagged"), tag=(Literal[tag], tag), inside=(kind.annotation, ...))
            for tag, kind in kinds.items()
        }
        one, two = models.values()
        annotation = Annotated[one | two, Field(discriminator="tag")]

        def make() -> Any:
            tag = self.rng.choice(list(kinds))
            return models[tag].model_construct(inside=kinds[tag].make())

        return Kind(annotation, make, "object", False)


def written(adapter: pydantic.TypeAdapter[Any], value: Any) -> bytes:
    """A value as JSON."""
    return adapter.dump_json(value, round_trip=True)


def spaced(text: bytes) -> bytes:
    """The same JSON with extra spaces."""
    return json.dumps(json.loads(text), ensure_ascii=False).encode()
