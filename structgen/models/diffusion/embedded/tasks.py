"""What the embedded diffusion model was trained for: a few facts in a text, and a JSON document that says them.

Each of the tasks has a JSON Schema, a way to draw records, and texts that tell a record.  Most values are copied from
the text; booleans and enumerations are worded (``"sold out"`` for ``"stock":false``), and what is optional stands in
the document where the text tells it.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final, get_args

from structgen.models.diffusion.embedded.values import Draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["TASKS", "Example", "Record", "Split", "Task", "compact", "examples"]

Record: TypeAlias = "dict[str, Any]"

Split: TypeAlias = Literal["train", "new_combinations", "new_values"]
"""Records of which values.

``train``: for training.  ``new_combinations``: values that training saw, in records that it did not (a twentieth of
all records is kept out).  ``new_values``: every name, and every number of a known stretch, is one that training never
saw.
"""

_SPLITS: tuple[str, ...] = get_args(Split)
_KEPT_RECORDS = 20
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_PLACE = re.compile(r"\{([a-z_.]+)\}")


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
    draw: Callable[[Draw], Record]
    texts: tuple[str, ...]
    wordings: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def tell(self, record: Record, chance: random.Random) -> str:
        """Return a prompt that tells the record: the name of the task and a text."""
        text = chance.choice(self.texts)
        text = _OPTIONAL.sub(lambda found: self._told(found[1], record), text)
        told = _PLACE.sub(lambda found: self._worded(found[1], record, chance), text)
        return f"{self.name}: {told}"

    def _told(self, part: str, record: Record) -> str:
        return part if all(_value(record, path) is not None for path in _PLACE.findall(part)) else ""

    def _worded(self, path: str, record: Record, chance: random.Random) -> str:
        value = _value(record, path)
        if path in self.wordings:
            return chance.choice(self.wordings[path][json.dumps(value)])
        if isinstance(value, list):
            return _enumerated([_spoken(each) for each in value])
        return _spoken(value)


@final
@dataclass(frozen=True)
class Example:
    """A prompt and the document that answers it.

    Attributes:
        task: the task's name.
        prompt: what the model is told, ready for ``EmbeddedDiffusion.encode_prompt``.
        document: compact JSON, properties in the order of the schema.
        record: its value.
    """

    task: str
    prompt: str
    document: str
    record: Record


def compact(record: Record) -> str:
    """Return the one spelling of a record that the model is trained on."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def examples(split: Split, seed: int, count: int, *, tasks: tuple[str, ...] | None = None) -> Iterator[Example]:
    """Yield examples, the same ones for the same arguments.

    Args:
        split: of which values.
        seed: another seed is another sequence.
        count: how many.
        tasks: names of the tasks to draw from; None is all of them, each as likely.

    Raises:
        ValueError: an unknown split or task.
    """
    if split not in _SPLITS:
        raise ValueError(f"examples: split {split!r} is unknown; choose one of {', '.join(_SPLITS)}")
    names = tuple(TASKS) if tasks is None else tasks
    if unknown := [name for name in names if name not in TASKS]:
        raise ValueError(f"examples: task {unknown[0]!r} is unknown; choose from {', '.join(TASKS)}")
    return _examples(split, seed, count, names)


def _examples(split: Split, seed: int, count: int, names: tuple[str, ...]) -> Iterator[Example]:
    chance = random.Random(f"{split} {seed}")
    draw = Draw(chance, unseen=split == "new_values")
    while count > 0:
        task = TASKS[chance.choice(names)]
        record = task.draw(draw)
        document = compact(record)
        kept = zlib.crc32(document.encode()) % _KEPT_RECORDS == 0
        if split != "new_values" and kept != (split == "new_combinations"):
            continue
        count -= 1
        yield Example(task.name, task.tell(record, chance), document, record)


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


def _object(properties: Record, optional: str = "") -> Record:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional.split()],
        "additionalProperties": False,
    }


def _schema(properties: Record, optional: str = "") -> Record:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_object(properties, optional)}


def _integer(low: int, high: int) -> Record:
    return {"type": "integer", "minimum": low, "maximum": high}


def _enum(*values: str) -> Record:
    return {"enum": list(values)}


def _pattern(pattern: str) -> Record:
    return {"type": "string", "pattern": pattern}


_TEXT = {"type": "string", "minLength": 1, "maxLength": 40}
_NUMBER = {"type": "number"}
_BOOLEAN = {"type": "boolean"}
_DATE = {"type": "string", "format": "date"}
_TIME = _pattern("^([01][0-9]|2[0-3]):[0-5][0-9]$")
_EMAIL = _pattern("^[a-z]{1,24}@[a-z]{1,12}[.][a-z]{2,3}$")  # format "email" takes some 20 000 states of an automaton

_CURRENCIES = {"EUR": "euros", "USD": "dollars", "GBP": "pounds", "JPY": "yen", "CHF": "francs"}
_CURRENCY = _enum(*_CURRENCIES)
_CURRENCY_WORDS = {json.dumps(code): (word, code) for code, word in _CURRENCIES.items()}
_COUNTRIES = {
    "AT": "Austria", "BR": "Brazil", "CH": "Switzerland", "DE": "Germany", "ES": "Spain", "FR": "France",
    "IN": "India", "IT": "Italy", "JP": "Japan", "KE": "Kenya", "NL": "Netherlands", "PL": "Poland",
}  # fmt: skip
_AIRLINES = ("AF", "BA", "CX", "DL", "EK", "FR", "IB", "JL", "KL", "LH", "LX", "OS", "QF", "SK", "SQ", "TK", "UA", "VY")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _yes_no(yes: tuple[str, ...], no: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    return {"true": yes, "false": no}


def _worded(**wordings: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    return {json.dumps(value): texts for value, texts in wordings.items()}


# Records.  What is optional is drawn in its place, so that properties keep the order of the schema.


def _person(draw: Draw) -> Record:
    record: Record = {"name": draw.person(), "age": draw.integer(1, 99, kept=(60, 69))}
    if draw.chance():
        record["city"] = draw.word("city")
    if draw.chance():
        record["email"] = f"{record['name'].split()[0].lower()}@{draw.word('domain')}.{draw.word('ending')}"
        if not record["email"].isascii():
            del record["email"]  # an address of ASCII letters
    return record


def _address(draw: Draw) -> Record:
    record: Record = {
        "street": f"{draw.word('street')} {draw.word('street_kind')}",
        "number": draw.integer(1, 250, kept=(60, 79)),
        "zip": f"{draw.integer(10000, 99999, kept=(60000, 69999))}",
        "city": draw.word("city"),
    }
    if draw.chance(0.6):
        record["country"] = draw.one_of(tuple(_COUNTRIES))
    return record


def _event(draw: Draw) -> Record:
    record: Record = {"title": draw.title(), "date": draw.date(), "start": draw.time()}
    if draw.chance():
        record["place"] = draw.word("city")
    return {**record, "public": draw.chance()}


def _product(draw: Draw) -> Record:
    return {
        "name": f"{draw.word('adjective').lower()} {draw.word('good')}",
        "price": draw.decimal(1, 999, kept=(300, 399)),
        "currency": draw.one_of(tuple(_CURRENCIES)),
        "stock": draw.chance(),
    }


def _book(draw: Draw) -> Record:
    record: Record = {
        "title": draw.title(),
        "author": draw.person(),
        "year": draw.integer(1850, 2030, kept=(1960, 1969)),
    }
    if draw.chance():
        record["pages"] = draw.integer(40, 990, kept=(300, 399))
    return record


def _flight(draw: Draw) -> Record:
    origin, target = draw.words("city", 2)
    return {
        "number": f"{draw.one_of(_AIRLINES)}{draw.integer(100, 9999, kept=(4000, 4999))}",
        "from": origin,
        "to": target,
        "departure": draw.time(),
        "delayed": draw.chance(),
    }


def _weather(draw: Draw) -> Record:
    record: Record = {
        "city": draw.word("city"),
        "temperature": draw.integer(-25, 42, kept=(20, 24)),
        "sky": draw.one_of(tuple(_SKIES)),
    }
    if draw.chance():
        record["wind"] = draw.integer(1, 120, kept=(40, 49))
    return record


def _order(draw: Draw) -> Record:
    goods = draw.words("good", 2 if draw.chance(0.4) else 1)
    return {
        "id": draw.integer(1000, 99999, kept=(50000, 59999)),
        "customer": draw.person(),
        "items": [{"product": good, "count": draw.integer(1, 60, kept=(30, 39))} for good in goods],
        "paid": draw.chance(),
    }


def _job(draw: Draw) -> Record:
    record: Record = {"title": draw.word("job"), "company": draw.word("company")}
    if draw.chance():
        record["city"] = draw.word("city")
    return {**record, "salary": draw.integer(18, 180, kept=(60, 69)) * 500, "remote": draw.chance()}


def _contact(draw: Draw) -> Record:
    kept = (600, 699)
    return {
        "name": {"first": draw.word("first"), "last": draw.word("surname")},
        "phone": f"+{draw.integer(10, 99, kept=(60, 69))} {draw.integer(100, 999, kept=kept)} "
        f"{draw.integer(1000, 9999, kept=(6000, 6999))}",
        "via": draw.one_of(tuple(_CHANNELS)),
    }


def _song(draw: Draw) -> Record:
    record: Record = {"title": draw.title(), "artist": draw.person()}
    if draw.chance():
        record["seconds"] = draw.integer(90, 600, kept=(300, 349))
    return {**record, "live": draw.chance()}


def _recipe(draw: Draw) -> Record:
    return {
        "dish": f"{draw.word('ingredient')} {draw.word('dish')}",
        "minutes": draw.integer(5, 180, kept=(60, 69)),
        "serves": draw.integer(1, 12, kept=(7, 7)),
        "ingredients": draw.words("ingredient", 2 + draw.chance()),
        "vegan": draw.chance(),
    }


def _match(draw: Draw) -> Record:
    home, away = (f"{draw.word('city')} {draw.word('team')}" for _ in range(2))
    goals = [draw.integer(0, 9, kept=(6, 6)) for _ in range(2)]
    return {"home": home, "away": away, "goals": goals, "final": draw.chance()}


def _transfer(draw: Draw) -> Record:
    record: Record = {
        "sender": draw.person(),
        "receiver": draw.person(),
        "amount": draw.decimal(1, 9999, kept=(3000, 3999)),
        "currency": draw.one_of(tuple(_CURRENCIES)),
    }
    if draw.chance():
        record["date"] = draw.date()
    return record


def _booking(draw: Draw) -> Record:
    return {
        "hotel": f"Hotel {draw.word('hotel')}",
        "guest": draw.person(),
        "arrival": draw.date(),
        "nights": draw.integer(1, 21, kept=(12, 14)),
        "room": draw.one_of(tuple(_ROOMS)),
        "breakfast": draw.chance(),
    }


def _reminder(draw: Draw) -> Record:
    record: Record = {"task": f"{draw.word('verb')} the {draw.word('chore')}"}
    if draw.chance():
        record["date"] = draw.date()
    return {**record, "time": draw.time(), "repeat": draw.one_of(tuple(_REPEATS))}


def _movie(draw: Draw) -> Record:
    record: Record = {"title": draw.title(), "year": draw.integer(1920, 2030, kept=(1960, 1969))}
    if draw.chance():
        record["director"] = draw.person()
    return {**record, "rating": draw.decimal(1, 9, kept=(6, 6), digits=1), "seen": draw.chance()}


def _measurement(draw: Draw) -> Record:
    letters = "".join(draw.random.choices(_LETTERS[:6], k=2)) if not draw.unseen else draw.one_of(("AF", "FA"))
    return {
        "sensor": f"{letters}-{draw.integer(10, 99, kept=(60, 69))}",
        "quantity": draw.one_of(tuple(_QUANTITIES)),
        "value": draw.decimal(0, 999, kept=(300, 399)),
        "time": draw.time(),
        "ok": draw.chance(),
    }


def _bug(draw: Draw) -> Record:
    record: Record = {
        "component": draw.word("component"),
        "summary": draw.word("fault"),
        "severity": draw.one_of(tuple(_SEVERITIES)),
    }
    if draw.chance():
        record["line"] = draw.integer(1, 2000, kept=(600, 699))
    return {**record, "open": draw.chance()}


def _city(draw: Draw) -> Record:
    record: Record = {
        "name": draw.word("city"),
        "country": draw.one_of(tuple(_COUNTRIES)),
        "population": draw.integer(2, 9000, kept=(600, 699)) * 1000,
    }
    if draw.chance():
        record["river"] = draw.word("river")
    return {**record, "capital": draw.chance()}


def _pet(draw: Draw) -> Record:
    record: Record = {
        "name": draw.word("pet"),
        "kind": draw.one_of(("dog", "cat", "horse", "rabbit", "parrot")),
        "age": draw.integer(1, 25, kept=(12, 14)),
    }
    if draw.chance():
        record["owner"] = draw.person()
    return {**record, "vaccinated": draw.chance()}


def _meeting(draw: Draw) -> Record:
    return {
        "topic": f"{draw.word('component')} {draw.word('chore')}",
        "day": draw.one_of(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")),
        "slot": {"start": draw.time(), "minutes": draw.integer(3, 36, kept=(12, 14)) * 5},
        "people": draw.words("first", 2 + draw.chance()),
        "online": draw.chance(),
    }


_SKIES = {
    "sunny": ("clear sky", "bright sun"),
    "cloudy": ("overcast", "grey clouds"),
    "rain": ("showers", "it pours"),
    "snow": ("flurries", "white flakes"),
    "fog": ("mist", "poor sight"),
}
_CHANNELS = {
    "email": ("prefers email", "write a mail"),
    "phone": ("prefers a call", "please ring"),
    "post": ("prefers letters", "by post"),
}
_ROOMS = {
    "single": ("single", "room for one"),
    "double": ("double", "room for two"),
    "suite": ("suite", "best room"),
}
_REPEATS = {
    "none": ("once", "just this time"),
    "daily": ("every day", "each morning"),
    "weekly": ("every week", "once a week"),
}
_QUANTITIES = {
    "temperature": ("degrees", "temperature"),
    "pressure": ("hectopascal", "pressure"),
    "humidity": ("percent", "humidity"),
}
_SEVERITIES = {
    "low": ("minor", "cosmetic"),
    "high": ("serious", "urgent"),
    "critical": ("blocker", "drop everything"),
}

_LIST = (
    Task(
        "person",
        _schema({"name": _TEXT, "age": _integer(0, 130), "city": _TEXT, "email": _EMAIL}, "city email"),
        _person,
        (
            "{name} is {age} years old[ and lives in {city}][, mail {email}]",
            "{name}, {age}[, from {city}][, {email}]",
            "[write to {email}: ]{name}, aged {age}[, {city}]",
        ),
    ),
    Task(
        "address",
        _schema(
            {
                "street": _TEXT,
                "number": _integer(1, 9999),
                "zip": _pattern("^[0-9]{5}$"),
                "city": _TEXT,
                "country": _enum(*_COUNTRIES),
            },
            "country",
        ),
        _address,
        (
            "{number} {street}, {zip} {city}[, {country}]",
            "send it to {street} {number} in {city}, zip {zip}[, {country}]",
            "house {number}, {street}, {city} {zip}[ ({country})]",
        ),
        {"country": {json.dumps(code): (name,) for code, name in _COUNTRIES.items()}},
    ),
    Task(
        "event",
        _schema({"title": _TEXT, "date": _DATE, "start": _TIME, "place": _TEXT, "public": _BOOLEAN}, "place"),
        _event,
        (
            "{title} on {date} at {start}[ in {place}], {public}",
            "{public}: {title}[, {place}], {date} {start}",
            "from {start} on {date} {title}[ takes place in {place}]; {public}",
        ),
        {"public": _yes_no(("open to all", "everybody welcome"), ("members only", "by invitation"))},
    ),
    Task(
        "product",
        _schema({"name": _TEXT, "price": _NUMBER, "currency": _CURRENCY, "stock": _BOOLEAN}),
        _product,
        (
            "{name} for {price} {currency}, {stock}",
            "{stock}: {name}, {price} {currency}",
            "the {name} costs {price} {currency}; {stock}",
        ),
        {
            "currency": _CURRENCY_WORDS,
            "stock": _yes_no(("in stock", "ready to ship"), ("out of stock", "sold out")),
        },
    ),
    Task(
        "book",
        _schema({"title": _TEXT, "author": _TEXT, "year": _integer(1000, 2100), "pages": _integer(1, 9999)}, "pages"),
        _book,
        (
            "{title} by {author}, {year}[, {pages} pages]",
            "{author} wrote {title} in {year}[; it has {pages} pages]",
            "[{pages} pages, ]published {year}: {title} ({author})",
        ),
    ),
    Task(
        "flight",
        _schema(
            {
                "number": _pattern("^[A-Z]{2}[0-9]{3,4}$"),
                "from": _TEXT,
                "to": _TEXT,
                "departure": _TIME,
                "delayed": _BOOLEAN,
            }
        ),
        _flight,
        (
            "{number} from {from} to {to} at {departure}, {delayed}",
            "at {departure} {number} leaves {from} for {to}; {delayed}",
            "{delayed}: {from} to {to}, {number}, {departure}",
        ),
        {"delayed": _yes_no(("running late", "delayed"), ("on time", "as planned"))},
    ),
    Task(
        "weather",
        _schema(
            {"city": _TEXT, "temperature": _integer(-60, 60), "sky": _enum(*_SKIES), "wind": _integer(0, 400)}, "wind"
        ),
        _weather,
        (
            "{city} {temperature} degrees, {sky}[, wind {wind}]",
            "{sky} in {city} at {temperature}[ with wind of {wind}]",
            "[wind {wind}, ]{temperature} degrees and {sky} in {city}",
        ),
        {"sky": _worded(**_SKIES)},
    ),
    Task(
        "order",
        _schema(
            {
                "id": _integer(1, 999999),
                "customer": _TEXT,
                "items": {
                    "type": "array",
                    "items": _object({"product": _TEXT, "count": _integer(1, 999)}),
                    "minItems": 1,
                    "maxItems": 3,
                },
                "paid": _BOOLEAN,
            }
        ),
        _order,
        (
            "order {id} of {customer}: {items}, {paid}",
            "{customer} wants {items} (order {id}), {paid}",
            "{paid}: number {id}, {items} for {customer}",
        ),
        {"paid": _yes_no(("already paid", "money received"), ("not paid yet", "payment is due"))},
    ),
    Task(
        "job",
        _schema(
            {"title": _TEXT, "company": _TEXT, "city": _TEXT, "salary": _integer(0, 999999), "remote": _BOOLEAN}, "city"
        ),
        _job,
        (
            "{company} seeks a {title}[ in {city}], {salary} a year, {remote}",
            "{title} at {company}[, {city}]; {remote}; pay {salary}",
            "{remote}: {title}[ in {city}] for {salary}, {company}",
        ),
        {"remote": _yes_no(("work from home", "remote"), ("on site", "at the office"))},
    ),
    Task(
        "contact",
        _schema(
            {
                "name": _object({"first": _TEXT, "last": _TEXT}),
                "phone": _pattern("^[+][0-9]{2} [0-9]{3} [0-9]{4}$"),
                "via": _enum(*_CHANNELS),
            }
        ),
        _contact,
        (
            "{name.first} {name.last}, {phone}, {via}",
            "{via}: {name.last}, {name.first}, phone {phone}",
            "{phone} is {name.first} {name.last}; {via}",
        ),
        {"via": _worded(**_CHANNELS)},
    ),
    Task(
        "song",
        _schema({"title": _TEXT, "artist": _TEXT, "seconds": _integer(1, 9999), "live": _BOOLEAN}, "seconds"),
        _song,
        (
            "{artist} sings {title}[ for {seconds} seconds], {live}",
            "{title} by {artist}[, {seconds} seconds], {live}",
            "{live}: {title}, {artist}[, length {seconds}]",
        ),
        {"live": _yes_no(("on stage", "concert take"), ("in the studio", "album take"))},
    ),
    Task(
        "recipe",
        _schema(
            {
                "dish": _TEXT,
                "minutes": _integer(1, 999),
                "serves": _integer(1, 99),
                "ingredients": {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 4},
                "vegan": _BOOLEAN,
            }
        ),
        _recipe,
        (
            "{dish} with {ingredients}, {minutes} minutes, for {serves}, {vegan}",
            "{vegan} {dish} for {serves} in {minutes} minutes: {ingredients}",
            "take {ingredients} for {dish}; {serves} people, {minutes} minutes, {vegan}",
        ),
        {"vegan": _yes_no(("vegan", "purely plants"), ("not vegan", "with animal products"))},
    ),
    Task(
        "match",
        _schema(
            {
                "home": _TEXT,
                "away": _TEXT,
                "goals": {
                    "type": "array",
                    "prefixItems": [_integer(0, 99), _integer(0, 99)],
                    "items": False,
                    "minItems": 2,
                },
                "final": _BOOLEAN,
            }
        ),
        _match,
        (
            "{home} against {away} {goals}, {final}",
            "{final}: {home} host {away}, {goals}",
            "{goals} for {home} and {away}, {final}",
        ),
        {"final": _yes_no(("match over", "full time"), ("still playing", "half time"))},
    ),
    Task(
        "transfer",
        _schema({"sender": _TEXT, "receiver": _TEXT, "amount": _NUMBER, "currency": _CURRENCY, "date": _DATE}, "date"),
        _transfer,
        (
            "{sender} sends {amount} {currency} to {receiver}[ on {date}]",
            "[{date}: ]{receiver} gets {amount} {currency} from {sender}",
            "{amount} {currency} from {sender} to {receiver}[, {date}]",
        ),
        {"currency": _CURRENCY_WORDS},
    ),
    Task(
        "booking",
        _schema(
            {
                "hotel": _TEXT,
                "guest": _TEXT,
                "arrival": _DATE,
                "nights": _integer(1, 99),
                "room": _enum(*_ROOMS),
                "breakfast": _BOOLEAN,
            }
        ),
        _booking,
        (
            "{guest} at {hotel} from {arrival}, {nights} nights, {room}, {breakfast}",
            "{hotel}: {room} {breakfast} for {guest}, {arrival}, {nights} nights",
            "{nights} nights from {arrival} for {guest}, {hotel}, {room}, {breakfast}",
        ),
        {
            "room": _worded(**_ROOMS),
            "breakfast": _yes_no(("with breakfast", "meal included"), ("no breakfast", "without meals")),
        },
    ),
    Task(
        "reminder",
        _schema({"task": _TEXT, "date": _DATE, "time": _TIME, "repeat": _enum(*_REPEATS)}, "date"),
        _reminder,
        (
            "{task}[ on {date}] at {time}, {repeat}",
            "{repeat} at {time}[ from {date}]: {task}",
            "remind me at {time}[ on {date}] to {task}, {repeat}",
        ),
        {"repeat": _worded(**_REPEATS)},
    ),
    Task(
        "movie",
        _schema(
            {"title": _TEXT, "year": _integer(1880, 2100), "director": _TEXT, "rating": _NUMBER, "seen": _BOOLEAN},
            "director",
        ),
        _movie,
        (
            "{title}, {year}[, by {director}], rated {rating}, {seen}",
            "{seen}: {title} ({year})[, director {director}], {rating} points",
            "[{director} made ]{title} in {year}; {rating} stars; {seen}",
        ),
        {"seen": _yes_no(("already watched", "seen it"), ("not watched yet", "to see"))},
    ),
    Task(
        "measurement",
        _schema(
            {
                "sensor": _pattern("^[A-Z]{2}-[0-9]{2}$"),
                "quantity": _enum(*_QUANTITIES),
                "value": _NUMBER,
                "time": _TIME,
                "ok": _BOOLEAN,
            }
        ),
        _measurement,
        (
            "{sensor} at {time}: {value} {quantity}, {ok}",
            "{value} {quantity} from {sensor}, {ok}, {time}",
            "{time} {ok}: sensor {sensor}, {quantity} {value}",
        ),
        {
            "quantity": _worded(**_QUANTITIES),
            "ok": _yes_no(("looks fine", "normal"), ("faulty", "out of range")),
        },
    ),
    Task(
        "bug",
        _schema(
            {
                "component": _TEXT,
                "summary": _TEXT,
                "severity": _enum(*_SEVERITIES),
                "line": _integer(1, 99999),
                "open": _BOOLEAN,
            },
            "line",
        ),
        _bug,
        (
            "{severity}, {component}: {summary}[ in line {line}], {open}",
            "{summary} in {component}[, line {line}]; {severity}; {open}",
            "{open}: {component}[ line {line}], {summary}, {severity}",
        ),
        {
            "severity": _worded(**_SEVERITIES),
            "open": _yes_no(("unsolved", "still there"), ("fixed", "solved")),
        },
    ),
    Task(
        "city",
        _schema(
            {
                "name": _TEXT,
                "country": _enum(*_COUNTRIES),
                "population": _integer(1, 99999999),
                "river": _TEXT,
                "capital": _BOOLEAN,
            },
            "river",
        ),
        _city,
        (
            "{name} in {country}[ on the {river}], {population} people, {capital}",
            "{capital}: {name}, {country}, {population}[, river {river}]",
            "{population} live in {name}[ by the {river}], {country}; {capital}",
        ),
        {
            "country": {json.dumps(code): (name,) for code, name in _COUNTRIES.items()},
            "capital": _yes_no(("the capital", "seat of government"), ("not the capital", "a town")),
        },
    ),
    Task(
        "pet",
        _schema(
            {
                "name": _TEXT,
                "kind": _enum("dog", "cat", "horse", "rabbit", "parrot"),
                "age": _integer(0, 99),
                "owner": _TEXT,
                "vaccinated": _BOOLEAN,
            },
            "owner",
        ),
        _pet,
        (
            "{name} the {kind}, {age} years[, owner {owner}], {vaccinated}",
            "[{owner} has ]a {kind} called {name}, {age}, {vaccinated}",
            "{vaccinated}: {kind} {name}[ of {owner}], aged {age}",
        ),
        {"vaccinated": _yes_no(("vaccinated", "has its shots"), ("not vaccinated", "needs shots"))},
    ),
    Task(
        "meeting",
        _schema(
            {
                "topic": _TEXT,
                "day": _enum("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"),
                "slot": _object({"start": _TIME, "minutes": _integer(1, 999)}),
                "people": {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 5},
                "online": _BOOLEAN,
            }
        ),
        _meeting,
        (
            "{topic} on {day} at {slot.start} for {slot.minutes} minutes with {people}, {online}",
            "{people} meet {day} {slot.start}, {slot.minutes} minutes, {online}: {topic}",
            "{online} {day}: {topic}, {slot.start}, {slot.minutes} minutes, {people}",
        ),
        {"online": _yes_no(("by video", "online"), ("in person", "face to face"))},
    ),
)

TASKS: Mapping[str, Task] = {task.name: task for task in _LIST}
"""The tasks by name."""
