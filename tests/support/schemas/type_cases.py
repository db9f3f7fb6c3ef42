"""Annotated types with values, and JSON texts of no value."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import ipaddress
import pathlib
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypeVar,
)

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel
from typing_extensions import TypeAliasType, TypedDict

import structgen as sg

T = TypeVar("T")


class Case(NamedTuple):
    """A type.

    Attributes:
        kind: the annotation.
        values: the values that its texts are read as. misses: texts that are not the JSON of any value.
        is_walked: random strings of the grammar are read too; not where validation asks for more than a schema says.
    """

    kind: Any
    values: list[Any]
    misses: list[str]
    is_walked: bool = True


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 20


class Mode(enum.StrEnum):
    ON = "on"
    OFF = "off"


class Mixed(enum.Enum):
    NUMBER = 1
    TEXT = "x"
    REAL = 2.5


class Constrained(BaseModel):
    age: int = Field(gt=0, le=150)
    size: float = Field(ge=0.5, lt=3)
    step: int = Field(multiple_of=5)
    name: str = Field(min_length=2, max_length=4)
    code: str = Field(pattern=r"^[A-Z]\d+$")


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
    first: int = Field(alias="First")
    second: str = Field("", alias="Second")


class TwoAliases(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    inner: int = Field(0, validation_alias=pydantic.AliasChoices("in", "IN"), serialization_alias="in")


class ByName(BaseModel):
    model_config = ConfigDict(validate_by_alias=False, validate_by_name=True)
    inner: int = Field(alias="outer")


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str] = []


class Box(BaseModel, Generic[T]):
    item: T
    more: list[T] = []


class Tree(BaseModel):
    label: str
    children: list[Tree] = []


class Even(BaseModel):
    odd: Odd | None = None


class Odd(BaseModel):
    even: Even | None = None


class Area(BaseModel):
    width: int
    height: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.width * self.height


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    x: int


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


class OpenIntegers(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    x: str = ""


class Nested(BaseModel):
    box: Box[Closed]
    choice: Closed | None = None


class Names(RootModel[list[str]]):
    pass


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@pydantic.dataclasses.dataclass(config=ConfigDict(extra="forbid"))
class Segment:
    start: Point
    end: Point = dataclasses.field(default_factory=lambda: Point(0))


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Loose(TypedDict, total=False):
    a: int
    b: str


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Plate(BaseModel):
    """Every place in which a grammar may stand."""

    model_config = ConfigDict(extra="forbid")
    plain: Annotated[str, sg.grammars.Regex(r"[A-Z]{3}")]
    several: list[Annotated[str, sg.grammars.Regex(r"a+b")]] = []
    named: dict[Annotated[str, sg.grammars.Regex(r"k\d")], int] = {}
    either: Annotated[str, sg.grammars.Regex(r"\d+")] | int = 0
    maybe: Annotated[str, sg.grammars.Lark('start: "(" start ")" | "x"')] | None = None
    whole: Annotated[str | None, sg.grammars.Regex("yes|no")] = None
    own: Annotated[str, sg.select(["p", "q"]) + sg.literal("-")] = "p-"
    short: Annotated[str, sg.grammars.Regex("a+"), Field(max_length=3)] = "a"
    also: Annotated[str, Field(min_length=2), sg.grammars.Regex("b*")] = "bb"
    both: Annotated[str, sg.grammars.Regex("[a-z]+"), Field(pattern="^x")] = "x"


@dataclasses.dataclass
class Marked:
    code: Annotated[str, sg.grammars.Regex(r"[é\n\"]+")]


class MarkedDict(TypedDict):
    code: Annotated[str, sg.grammars.Regex("a|b")]


class MarkedTuple(NamedTuple):
    code: Annotated[str, sg.grammars.Lark('start: "<" start? ">"')]


UserId = NewType("UserId", int)
Code = TypeAliasType("Code", Annotated[str, sg.grammars.Regex("[0-9]{2}")])
Nesting = TypeAliasType("Nesting", "list[Nesting] | int")
Shape = Annotated[Cat | Dog, Field(discriminator="kind")]
UTC = dt.UTC
EAST = dt.timezone(dt.timedelta(hours=5, minutes=30))

CASES: dict[str, Case] = {
    "none": Case(None, [None, None], ["0", '"null"', "false"]),
    "bool": Case(bool, [True, False], ["2", '"maybe"', "null"]),
    "int": Case(int, [0, -(10**20)], ["1.5", '"x"', "true1", "01"]),
    "positive int": Case(pydantic.PositiveInt, [1, 99], ["0", "-1"]),
    "non-negative float": Case(pydantic.NonNegativeFloat, [0.0, 1e-9], ["-0.1", "-1"]),
    "int between": Case(Annotated[int, Field(ge=-3, lt=12)], [-3, 11], ["-4", "12"]),
    "int multiple": Case(Annotated[int, Field(multiple_of=7)], [-14, 0], ["1", "15"]),
    "float": Case(float, [0.5, -1e300], ["null", '"x"', "1e999x"]),
    "finite float": Case(pydantic.FiniteFloat, [2.0, -0.125], ["NaN", "Infinity"]),
    "float above": Case(Annotated[float, Field(gt=0.1)], [0.25, 1e10], ["0.1", "-5"]),
    "str": Case(str, ["", 'é"\\\n\U0001f600'], ["1", "null", '"']),
    "str of a length": Case(pydantic.constr(min_length=2, max_length=3), ["ab", "\U0001f600éx"], ['"a"', '"abcd"']),
    "str with a pattern": Case(Annotated[str, Field(pattern="^a+$")], ["a", "aaa"], ['"b"', '"ab"']),
    "str with a class of Rust": Case(Annotated[str, Field(pattern=r"^\D$")], ["x", "é"], ['"1"', '"\u0663"']),
    "str with words": Case(Annotated[str, Field(pattern=r"^\w+$")], ["x", "é"], ['"-"', '""']),
    "stripped str": Case(
        Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=1)], ["a", "a b"], ['""', '"  "']
    ),
    "lower str": Case(Annotated[str, pydantic.StringConstraints(to_lower=True, max_length=3)], ["a", "é"], ['"abcd"']),
    "literal": Case(Literal["a", 1, True, None], ["a", 1, None], ['"b"', "2", "false"]),
    "enum": Case(Color, list(Color), ['"green"', '"RED"', "1"]),
    "int enum": Case(Level, list(Level), ["2", '"LOW"']),
    "str enum": Case(Mode, list(Mode), ['"ON"', "true"]),
    "mixed enum": Case(Mixed, list(Mixed), ['"NUMBER"', "2", '"y"']),
    "literal of enum": Case(Literal[Mode.ON, Level.LOW], [Mode.ON, Level.LOW], ['"off"', '"ON"', "2"]),
    "optional": Case(int | None, [None, 3], ['"x"', "1.5"]),
    "union": Case(int | list[str], [1, ["a"]], ['"x"', "[1]", "{}"]),
    "list": Case(list[int], [[], [1, 2]], ['["x"]', "{}", "[1,]"]),
    "list of a length": Case(pydantic.conlist(int, min_length=1, max_length=2), [[1], [1, 2]], ["[]", "[1,2,3]"]),
    "nested list": Case(list[list[bool]], [[[True]], [[], [False]]], ["[true]", "[[2]]"]),
    "tuple": Case(tuple[int, str], [(1, "a"), (-1, "")], ["[1]", '[1,"a",2]', '["a",1]']),
    "tuple of any length": Case(tuple[int, ...], [(), (1, 2, 3)], ['["a"]', "{}"]),
    "empty tuple": Case(tuple[()], [(), ()], ["[1]", "null"]),
    "set": Case(set[int], [set(), {1, 2}], ['["a"]', "{}"]),
    "set of a length": Case(Annotated[set[int], Field(min_length=2)], [{1, 2}, {3, 4, 5}], ["[1]", "[1,1]"]),
    "frozenset": Case(frozenset[str], [frozenset(), frozenset({"a"})], ["[1]", '"a"']),
    "deque": Case(collections.deque[int], [collections.deque(), collections.deque([1, 2])], ['["a"]', "{}"]),
    "sequence": Case(Sequence[str], [[], ["a", "b"]], ["[1]", "{}"]),
    "mapping": Case(Mapping[str, int], [{}, {"a": 1}], ['{"a":"b"}', "[]"]),
    "dict": Case(dict[str, bool], [{}, {"a": True, "": False}], ['{"a":2}', "[]"]),
    "dict of a length": Case(Annotated[dict[str, int], Field(max_length=1)], [{}, {"a": 1}], ['{"a":1,"b":2}']),
    "dict by int": Case(dict[int, str], [{1: "a", -20: ""}, {0: "x"}], ['{"a":""}', '{"1.5":""}', '{"":""}']),
    "dict by bounded int": Case(dict[Annotated[int, Field(ge=5)], int], [{5: 1}, {77: 0}], ['{"4":1}', '{"x":1}']),
    "dict by enum": Case(dict[Color, int], [{Color.RED: 1}, {}], ['{"green":1}', '{"RED":1}']),
    "dict by int enum": Case(dict[Level, int], [{Level.LOW: 1}, {Level.HIGH: 2}], ['{"2":1}', '{"LOW":1}']),
    "dict by literal": Case(dict[Literal["a", "b"], int], [{"a": 1}, {"b": 2}], ['{"c":1}', '{"":1}']),
    "dict by pattern": Case(dict[Annotated[str, Field(pattern="^a")], int], [{"a": 1}, {"ab": 2}], ['{"b":1}']),
    "dict by uuid": Case(dict[uuid.UUID, int], [{uuid.UUID(int=5): 1}, {}], ['{"5":1}']),
    "dict by date": Case(dict[dt.date, int], [{dt.date(2024, 2, 29): 1}, {}], ['{"2023-02-29":1}']),
    "dict by float": Case(dict[float, int], [{1.5: 1}, {0.0: 2}], ['{"x":1}', '{"":1}']),
    "dict by bool": Case(dict[bool, int], [{True: 1}, {False: 2}], ['{"x":1}', '{"2":1}']),
    "counter": Case(collections.Counter[str], [collections.Counter("aab"), collections.Counter()], ['{"a":"b"}']),
    "decimal": Case(Decimal, [Decimal("1.50"), Decimal("-1E+5")], ['"x"', '"1.2.3"', '"NaN"', "null"]),
    "decimal of digits": Case(
        Annotated[Decimal, Field(max_digits=4, decimal_places=2)],
        [Decimal("12.34"), Decimal("-0.5")],
        ['"123.4"', '"0.123"', "123.4", "0.123"],
    ),
    "decimal of places": Case(
        Annotated[Decimal, Field(decimal_places=1)], [Decimal("123456.7"), Decimal(3)], ['"0.12"', "0.12"]
    ),
    "decimal of total digits": Case(
        Annotated[Decimal, Field(max_digits=3)], [Decimal("1.25"), Decimal("0.001")], ['"1234"', '"0.1234"']
    ),
    "decimal between": Case(
        Annotated[Decimal, Field(gt=Decimal("0.1"), le=10)], [Decimal("0.11"), Decimal(10)], ['"0.1"', '"10.1"', "0.1"]
    ),
    "fraction": Case(Fraction, [Fraction(1, 3), Fraction(-2)], ['"1/0"', '"x"']),
    "complex": Case(complex, [1 + 2j, -0.5j], ['"1+"', '"x"']),
    "date": Case(dt.date, [dt.date(2024, 2, 29), dt.date.min], ['"2023-02-29"', '"0000-01-01"', '"2024-13-01"']),
    "date between": Case(
        Annotated[dt.date, Field(ge=dt.date(2020, 2, 15), lt=dt.date(2021, 1, 1))],
        [dt.date(2020, 2, 15), dt.date(2020, 12, 31)],
        ['"2020-02-14"', '"2021-01-01"', '"2019-12-31"'],
    ),
    "date after": Case(
        Annotated[dt.date, Field(gt=dt.date(2020, 2, 29))], [dt.date(2020, 3, 1), dt.date.max], ['"2020-02-29"']
    ),
    "datetime": Case(
        dt.datetime,
        [dt.datetime(2024, 1, 2, 3, 4, 5), dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(2024, 1, 2, 3, 4, 5, 6, EAST)],
        ['"2024-01-02T24:00:00"', '"2024-01-02T00:00:60"', '"2024-02-30T00:00:00Z"', '"0000-01-01T00:00:00Z"'],
    ),
    "aware datetime": Case(
        pydantic.AwareDatetime,
        [dt.datetime(2024, 1, 2, tzinfo=UTC), dt.datetime(9999, 1, 2, 23, tzinfo=EAST)],
        ['"2024-01-02T03:04:05"', '"2024-01-02T03:04:05+24:00"'],
    ),
    "naive datetime": Case(
        pydantic.NaiveDatetime, [dt.datetime(2024, 1, 2), dt.datetime.max], ['"2024-01-02T03:04:05Z"', '"x"']
    ),
    "time": Case(
        dt.time, [dt.time(1, 2, 3), dt.time(23, 59, 59, 5, tzinfo=UTC)], ['"24:00:00"', '"23:59:60"', '"1:2:3"']
    ),
    "timedelta": Case(
        dt.timedelta,
        [dt.timedelta(days=400, seconds=5), -dt.timedelta(microseconds=1), dt.timedelta.max, dt.timedelta.min],
        ['"P"', '"PT"', '"P2739726Y10D"', '"1 day!"'],
    ),
    "uuid": Case(
        uuid.UUID, [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)], ['"x"', '"00000000-0000-0000-0000-00000000000"']
    ),
    "uuid4": Case(
        pydantic.UUID4,
        [uuid.UUID("c0ffee00-1234-4abc-8def-000000000000"), uuid.UUID("c0ffee00-1234-4abc-bdef-000000000001")],
        ['"c0ffee00-1234-1abc-8def-000000000000"', '"c0ffee00-1234-4abc-0def-000000000000"'],
    ),
    "ipv4": Case(
        ipaddress.IPv4Address, [ipaddress.IPv4Address(0), ipaddress.IPv4Address("1.2.3.255")], ['"1.2.3.256"']
    ),
    "ipv6": Case(
        ipaddress.IPv6Address, [ipaddress.IPv6Address(1), ipaddress.IPv6Address("2001:db8::5")], ['":::"', '"1"']
    ),
    "ipv4 network": Case(
        ipaddress.IPv4Network,
        [
            ipaddress.IPv4Network("10.0.0.0/8"),
            ipaddress.IPv4Network("1.2.3.128/25"),
            ipaddress.IPv4Network("0.0.0.0/0"),
        ],
        ['"10.0.0.1/8"', '"1.2.3.64/25"', '"1.2.3.4/33"'],
    ),
    "ipv6 network": Case(
        ipaddress.IPv6Network,
        [ipaddress.IPv6Network("2001:db8::/32"), ipaddress.IPv6Network("::/0"), ipaddress.IPv6Network("fe80::/10")],
        ['"2001:db8::1/32"', '"::/129"', '"fe90::/11"'],
    ),
    "ipv4 interface": Case(
        ipaddress.IPv4Interface,
        [ipaddress.IPv4Interface("1.2.3.4/8"), ipaddress.IPv4Interface("0.0.0.0/0")],
        ['"1.2.3.4/33"', '"1.2.3/8"'],
    ),
    "any address": Case(
        pydantic.IPvAnyAddress, [ipaddress.IPv4Address("1.2.3.4"), ipaddress.IPv6Address("::1")], ['"1.2.3"', '"x"']
    ),
    "path": Case(pathlib.Path, [pathlib.Path("a/b"), pathlib.Path(".")], ["1", "null"]),
    "bytes": Case(bytes, [b"", "é".encode()], ["1", "null"]),
    "bytes of a length": Case(
        Annotated[bytes, Field(min_length=2, max_length=3)], [b"ab", "éx".encode()], ['"a"', '"éé"']
    ),
    "bytes in Base 64": Case(pydantic.Base64Bytes, [b"abc", b"a"], ['"YWJ"', '"Y"']),
    "url": Case(
        pydantic.AnyUrl,
        [pydantic.AnyUrl("https://example.com/a?b=c#d"), pydantic.AnyUrl("ftp://u:p@h.org:21/")],
        ['"x"', '"http://"', '"http://a:99999"'],
    ),
    "http url": Case(
        pydantic.HttpUrl,
        [pydantic.HttpUrl("http://example.com"), pydantic.HttpUrl("https://[::1]:8080/x")],
        ['"ftp://example.com"', '"http://1.2.3.4.5/"'],
    ),
    "dsn": Case(
        pydantic.PostgresDsn,
        [pydantic.PostgresDsn("postgres://u:p@a.b:5432/x"), pydantic.PostgresDsn("postgresql://a.b,c.d:1/x")],
        ['"http://a.b/"', '"postgres"'],
    ),
    "json": Case(pydantic.Json[list[int]], [[], [1, 2]], ['"[\\"a\\"]"', "[1]", '"{}"']),
    "json of texts": Case(pydantic.Json[list[str]], [["a"], ['"\n']], ["[1]", '"[1]"', '["a"]']),
    "json of a model": Case(
        pydantic.Json[Tree], [Tree(label="a"), Tree(label="", children=[Tree(label='"')])], ['"{}"']
    ),
    "json in json": Case(pydantic.Json[list[pydantic.Json[int]]], [[], [1]], ['"[1]"', "[]"]),
    "any": Case(Any, [None, {"a": [1.5, "x"]}], ["x", "{", "[1,]"]),
    "json value": Case(pydantic.JsonValue, [True, [{"a": None}]], ["x", "'a'"]),
    "object": Case(object, [1, "x"], ["x", "nul"]),
    "new type": Case(UserId, [UserId(1), UserId(-2)], ['"x"', "1.5"]),
    "type alias": Case(Code, ["12", "00"], ['"1"', '"123"', "12"]),
    "recursive alias": Case(Nesting, [1, [[], [2]]], ['"x"', '[["x"]]']),
    "regex": Case(Annotated[str, sg.grammars.Regex(r"[A-Z]{3}")], ["ABC", "XYZ"], ['"abc"', '"ABCD"', "1"]),
    "regex of escapes": Case(Annotated[str, sg.grammars.Regex(r'[\n"\\é]+')], ['"', '\n\\é"'], ['"n"', '""']),
    "lark": Case(Annotated[str, sg.grammars.Lark('start: "(" start ")" | "x"')], ["x", "((x))"], ['"((x)"', '"()"']),
    "lark of escapes": Case(
        Annotated[str, sg.grammars.Lark('start: "\\"" start "é" | "\\n"')], ["\n", '""\néé'], ['"é"']
    ),
    "grammar": Case(Annotated[str, sg.literal("a") | sg.regex("b+")], ["a", "bb"], ['"ab"', '"c"']),
    "marked optional": Case(Annotated[str, sg.grammars.Regex("a+")] | None, [None, "aa"], ['"b"', "1"]),
    "marked items": Case(list[Annotated[str, sg.grammars.Regex("a+")]], [[], ["a", "aa"]], ['["b"]', '"a"']),
    "marked keys": Case(
        dict[Annotated[str, sg.grammars.Regex("k[0-9]")], int], [{}, {"k1": 1}], ['{"k":1}', '{"k12":1}']
    ),
    "marked set": Case(
        set[Annotated[str, sg.grammars.Lark('start: "a" start "b" | "ab"')]], [set(), {"ab", "aabb"}], ['["aab"]']
    ),
    "marked everywhere": Case(
        Plate,
        [
            Plate(plain="ABC"),
            Plate(
                plain="XYZ",
                several=["ab"],
                named={"k1": 2},
                either="12",
                maybe="((x))",
                whole="no",
                own="q-",
                short="aaa",
            ),
        ],
        [
            '{"plain":"AB"}',
            '{"plain":"ABC","several":["a"]}',
            '{"plain":"ABC","named":{"j1":2}}',
            '{"plain":"ABC","either":"x"}',
            '{"plain":"ABC","maybe":"(x"}',
            '{"plain":"ABC","whole":"maybe"}',
            '{"plain":"ABC","own":"p"}',
            '{"plain":"ABC","short":"aaaa"}',
            '{"plain":"ABC","also":"b"}',
            '{"plain":"ABC","both":"yx"}',
        ],
    ),
    "marked dataclass": Case(Marked, [Marked("é"), Marked('\n"')], ['{"code":"e"}', '{"code":""}']),
    "marked typed dict": Case(MarkedDict, [{"code": "a"}, {"code": "b"}], ['{"code":"c"}', "{}"]),
    "marked named tuple": Case(MarkedTuple, [MarkedTuple("<>"), MarkedTuple("<<>>")], ['["<"]', "[]"]),
    "constrained model": Case(
        Constrained,
        [
            Constrained(age=1, size=0.5, step=-5, name="ab", code="A1"),
            Constrained(age=150, size=2.999, step=0, name="é\U0001f600xy", code="Z007"),
        ],
        [
            '{"age":0,"size":1,"step":5,"name":"ab","code":"A1"}',
            '{"age":1,"size":3,"step":5,"name":"ab","code":"A1"}',
            '{"age":1,"size":1,"step":6,"name":"ab","code":"A1"}',
            '{"age":1,"size":1,"step":5,"name":"a","code":"A1"}',
            '{"age":1,"size":1,"step":5,"name":"ab","code":"a1"}',
            '{"age":1}',
        ],
    ),
    "aliases": Case(
        Aliased, [Aliased(First=1), Aliased(First=2, Second="x")], ['{"Second":"x"}', '{"First":1,"second":5}']
    ),
    "two aliases": Case(TwoAliases, [TwoAliases(), TwoAliases(**{"in": 3})], ['{"in":"x"}', '{"IN":"x"}']),
    "by name": Case(ByName, [ByName(inner=1), ByName(inner=2)], ['{"outer":1}', '{"inner":"x"}']),
    "tagged union": Case(
        Shape, [Cat(kind="cat", lives=9), Dog(kind="dog", tricks=["sit"])], ['{"kind":"cow"}', '{"kind":"cat"}', "{}"]
    ),
    "generic": Case(Box[int], [Box[int](item=1), Box[int](item=2, more=[3])], ['{"item":"x"}', "{}"]),
    "recursive": Case(
        Tree, [Tree(label="a"), Tree(label="b", children=[Tree(label="c")])], ['{"label":"a","children":[1]}']
    ),
    "mutually recursive": Case(Even, [Even(), Even(odd=Odd(even=Even()))], ['{"odd":{"even":1}}', "[]"]),
    "computed": Case(Area, [Area(width=1, height=2), Area(width=0, height=5)], ['{"width":1}', "{}"]),
    "closed": Case(Closed, [Closed(x=1), Closed(x=-5)], ['{"x":1,"y":2}', "{}"]),
    "open": Case(Open, [Open(x=1), Open(x=1, y=[1])], ['{"y":2}', '{"x":"a"}']),
    "open to integers": Case(OpenIntegers, [OpenIntegers(), OpenIntegers(x="a", y=1)], ['{"y":"a"}', '{"x":1}']),
    "nested": Case(
        Nested,
        [Nested(box=Box[Closed](item=Closed(x=1))), Nested(box=Box[Closed](item=Closed(x=1)), choice=Closed(x=2))],
        ['{"box":{"item":{}}}', '{"box":{"item":{"x":1}},"choice":1}'],
    ),
    "root model": Case(Names, [Names([]), Names(["a", "b"])], ['{"root":[]}', "[1]"]),
    "dataclass": Case(Point, [Point(1), Point(2, 0.5)], ['{"y":1}', '{"x":"a"}']),
    "pydantic dataclass": Case(Segment, [Segment(Point(1)), Segment(Point(1), Point(2))], ['{"start":{"x":1},"z":1}']),
    "typed dict": Case(Movie, [{"title": "a"}, {"title": "b", "year": 1}], ['{"year":1}', '{"title":1}']),
    "typed dict, not total": Case(Loose, [{}, {"a": 1, "b": "x"}], ['{"a":"x"}', "[]"]),
    "named tuple": Case(Pair, [Pair(1), Pair(2, "x")], ["[]", '["a"]', '[1,"a",2]']),
    "own validator": Case(Annotated[int, AfterValidator(lambda n: n)], [1, 2], ['"x"', "1.5"]),
    "default": Case(Annotated[int, Field(default=3)], [3, 4], ['"x"']),
}
