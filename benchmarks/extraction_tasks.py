"""The types and documents of the benchmark of extraction, and how answers are graded, field by field."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import punctuation, whitespace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from pydantic import BaseModel, Field

__all__ = ["DOCUMENTS", "MODELS", "Document", "Grade", "documents", "grades", "is_optional"]

DOCUMENTS: Final = Path(__file__).with_name("extraction_documents.toml")
Verdict: TypeAlias = Literal["correct", "wrong", "missing", "invented"]


class Item(BaseModel):
    name: str
    quantity: int


class Order(BaseModel):
    customer: str
    items: list[Item]
    total: float
    express: bool
    note: str | None = Field(None, description="instructions for the delivery")


class Invoice(BaseModel):
    number: str
    seller: str
    issued: str
    due: str | None = None
    total: float
    currency: Literal["EUR", "GBP", "USD"]
    paid: bool


class Candidate(BaseModel):
    name: str
    email: str | None = None
    years: int = Field(description="years of experience")
    degree: Literal["none", "bachelor", "master", "doctorate"]
    skills: list[str]
    employer: str | None = Field(None, description="the present employer")


class Place(BaseModel):
    venue: str
    city: str


class Event(BaseModel):
    title: str
    date: str
    place: Place
    free: bool
    price: float | None = None
    speakers: list[str]


class Action(BaseModel):
    owner: str
    task: str
    due: str


class Minutes(BaseModel):
    date: str
    chair: str
    attendees: list[str]
    actions: list[Action]
    next_meeting: str | None = Field(None, description="date of the next meeting")


class BugReport(BaseModel):
    product: str
    version: str
    severity: Literal["low", "medium", "high", "critical"]
    reproducible: bool
    platforms: list[str]
    error_code: str | None = None


class Ingredient(BaseModel):
    name: str
    amount: str


class Recipe(BaseModel):
    name: str
    servings: int
    minutes: int
    ingredients: list[Ingredient]
    vegetarian: bool
    oven: int | None = Field(None, description="temperature of the oven in degrees")


class Listing(BaseModel):
    city: str
    rooms: int
    area: float = Field(description="in square metres")
    rent: float
    furnished: bool
    pets: Literal["allowed", "forbidden", "on request"]
    deposit: float | None = None


class Notice(BaseModel):
    region: str
    day: str
    sky: Literal["clear", "cloudy", "rain", "snow"]
    low: int = Field(description="lowest temperature")
    high: int = Field(description="highest temperature")
    wind: int | None = Field(None, description="in km/h")
    warning: str | None = None


class Letter(BaseModel):
    sender: str
    recipient: str | None = None
    place: str | None = Field(None, description="where it was written")
    date: str | None = None
    subject: str | None = None
    tone: Literal["angry", "polite", "warm"]
    asks_for_reply: bool


class Product(BaseModel):
    name: str
    brand: str
    price: float
    colours: list[str]
    grams: int | None = Field(None, description="weight in grams")
    in_stock: bool


class Appointment(BaseModel):
    patient: str
    doctor: str
    department: Literal["cardiology", "laboratory", "radiology"]
    date: str
    time: str
    fasting: bool
    bring: list[str]
    fee: float | None = None


class Leg(BaseModel):
    origin: str
    destination: str
    date: str


class Hotel(BaseModel):
    name: str
    nights: int


class Trip(BaseModel):
    traveller: str
    legs: list[Leg]
    cabin: Literal["economy", "business", "first"]
    bags: int
    hotel: Hotel | None = None


MODELS: Final[Mapping[str, type[BaseModel]]] = {
    each.__name__: each
    for each in (
        *(Order, Invoice, Candidate, Event, Minutes, BugReport, Recipe, Listing, Notice, Letter, Product, Appointment),
        Trip,
    )
}


@dataclass(frozen=True, slots=True)
class Document:
    """A text and what is to be found in it.

    Attributes:
        name: short.
        model: the type of the answer.
        text: what the model reads.
        gold: the right answer.
        heldout: whether it is kept for one last look.
    """

    name: str
    model: type[BaseModel]
    text: str
    gold: BaseModel = field(repr=False)
    heldout: bool = False


def documents() -> list[Document]:
    """All documents, the first of each type first, so that the head of the list has all types."""
    held = tomllib.loads(DOCUMENTS.read_text(encoding="utf-8"))["document"]
    seen: dict[tuple[str, bool], int] = {}
    made: list[tuple[int, Document]] = []
    for each in held:
        model, heldout = MODELS[each["model"]], each.get("heldout", False)
        at = seen[each["model"], heldout] = seen.get((each["model"], heldout), -1) + 1
        gold = model.model_validate(each["gold"], strict=True, extra="forbid")
        made.append((at, Document(each["name"], model, each["text"].strip(), gold, heldout)))
    return [document for _, document in sorted(made, key=lambda pair: pair[0])]


class Grade(NamedTuple):
    """What became of one field.

    Attributes:
        path: names from the root; the items of a list are graded together.
        verdict: ``missing`` is null or an empty list where the document tells the value, ``invented`` the opposite.
        score: 1 or 0; of a list F1 of its items, or of the members of its items.
        optional: whether the type allows null.
        present: whether the document tells the value.
    """

    path: str
    verdict: Verdict
    score: float
    optional: bool
    present: bool


def grades(gold: BaseModel, answer: BaseModel) -> list[Grade]:
    """Compare an answer with the right one of the same type, field by field.

    Texts are compared without case, surrounding punctuation and the kind of white space; numbers exactly.
    """
    return list(_grades(gold, answer, ""))


def _grades(gold: BaseModel, answer: BaseModel | None, prefix: str) -> Iterator[Grade]:
    for name, info in type(gold).model_fields.items():
        right, found = getattr(gold, name), getattr(answer, name, None)
        path, optional = f"{prefix}{name}", is_optional(info.annotation)
        if isinstance(right, BaseModel):
            for grade in _grades(right, found, f"{path}."):
                yield grade._replace(optional=grade.optional or optional)
            continue
        yield Grade(path, *_compared(right, found), optional, right is not None and right != [])


def _compared(right: Any, found: Any) -> tuple[Verdict, float]:
    absent, empty = right is None or right == [], found is None or found == []
    if absent or empty:
        return ("correct", 1.0) if absent and empty else ("invented" if absent else "missing", 0.0)
    score = _f1(right, found) if isinstance(right, list) else float(_same(right, found))
    return "correct" if score == 1 else "wrong", score


def _f1(right: list[Any], found: list[Any]) -> float:
    """F1 of the texts, or of the members of objects, each paired with the one it has most in common with."""
    left = [_cells(each) for each in found]
    size = sum(map(len, left)) + sum(len(_cells(each)) for each in right)
    pairs = sorted(
        ((len(_cells(one) & other), -i, -j) for i, one in enumerate(right) for j, other in enumerate(left)),
        reverse=True,
    )
    used_right, used_left, common = set(), set(), 0
    for overlap, i, j in pairs:
        if i not in used_right and j not in used_left:
            used_right.add(i)
            used_left.add(j)
            common += overlap
    return 2 * common / size


def _cells(value: Any) -> frozenset[tuple[str, Any]]:
    if isinstance(value, BaseModel):
        return frozenset((name, _normal(held)) for name, held in value)
    return frozenset([("", _normal(value))])


def _same(right: Any, found: Any) -> bool:
    return bool(_normal(right) == _normal(found))


def _normal(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return " ".join(value.casefold().split()).strip(punctuation + whitespace)


def is_optional(annotation: Any) -> bool:
    """Whether a type allows null."""
    return type(None) in get_args(annotation)
