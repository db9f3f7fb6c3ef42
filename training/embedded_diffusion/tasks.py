"""The 22 tasks of the embedded diffusion model: schema, sampler and texts of each.

Most values are copied from the text; booleans and enumerations are worded (``"sold out"`` for ``"stock":false``), and
what is optional stands in the document where the text tells it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from training.embedded_diffusion.records import (
    sample_address,
    sample_book,
    sample_booking,
    sample_bug,
    sample_city,
    sample_contact,
    sample_event,
    sample_flight,
    sample_job,
    sample_match,
    sample_measurement,
    sample_meeting,
    sample_movie,
    sample_order,
    sample_person,
    sample_pet,
    sample_product,
    sample_recipe,
    sample_reminder,
    sample_song,
    sample_transfer,
    sample_weather,
)
from training.embedded_diffusion.schemas import (
    BOOLEAN,
    CHANNELS,
    COUNTRIES,
    CURRENCY,
    CURRENCY_WORDS,
    DATE,
    EMAIL,
    NUMBER,
    QUANTITIES,
    REPEATS,
    ROOMS,
    SEVERITIES,
    SKIES,
    TEXT,
    TIME,
    Task,
    enum_schema,
    integer_schema,
    object_schema,
    pattern_schema,
    record_schema,
    worded,
    yes_no,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TASKS"]

_LIST = (
    Task(
        "person",
        record_schema({"name": TEXT, "age": integer_schema(0, 130), "city": TEXT, "email": EMAIL}, "city email"),
        sample_person,
        (
            "{name} is {age} years old[ and lives in {city}][, mail {email}]",
            "{name}, {age}[, from {city}][, {email}]",
            "[write to {email}: ]{name}, aged {age}[, {city}]",
        ),
    ),
    Task(
        "address",
        record_schema(
            {
                "street": TEXT,
                "number": integer_schema(1, 9999),
                "zip": pattern_schema("^[0-9]{5}$"),
                "city": TEXT,
                "country": enum_schema(*COUNTRIES),
            },
            "country",
        ),
        sample_address,
        (
            "{number} {street}, {zip} {city}[, {country}]",
            "send it to {street} {number} in {city}, zip {zip}[, {country}]",
            "house {number}, {street}, {city} {zip}[ ({country})]",
        ),
        {"country": {json.dumps(code): (name,) for code, name in COUNTRIES.items()}},
    ),
    Task(
        "event",
        record_schema({"title": TEXT, "date": DATE, "start": TIME, "place": TEXT, "public": BOOLEAN}, "place"),
        sample_event,
        (
            "{title} on {date} at {start}[ in {place}], {public}",
            "{public}: {title}[, {place}], {date} {start}",
            "from {start} on {date} {title}[ takes place in {place}]; {public}",
        ),
        {"public": yes_no(("open to all", "everybody welcome"), ("members only", "by invitation"))},
    ),
    Task(
        "product",
        record_schema({"name": TEXT, "price": NUMBER, "currency": CURRENCY, "stock": BOOLEAN}),
        sample_product,
        (
            "{name} for {price} {currency}, {stock}",
            "{stock}: {name}, {price} {currency}",
            "the {name} costs {price} {currency}; {stock}",
        ),
        {
            "currency": CURRENCY_WORDS,
            "stock": yes_no(("in stock", "ready to ship"), ("out of stock", "sold out")),
        },
    ),
    Task(
        "book",
        record_schema(
            {"title": TEXT, "author": TEXT, "year": integer_schema(1000, 2100), "pages": integer_schema(1, 9999)},
            "pages",
        ),
        sample_book,
        (
            "{title} by {author}, {year}[, {pages} pages]",
            "{author} wrote {title} in {year}[; it has {pages} pages]",
            "[{pages} pages, ]published {year}: {title} ({author})",
        ),
    ),
    Task(
        "flight",
        record_schema(
            {
                "number": pattern_schema("^[A-Z]{2}[0-9]{3,4}$"),
                "from": TEXT,
                "to": TEXT,
                "departure": TIME,
                "delayed": BOOLEAN,
            }
        ),
        sample_flight,
        (
            "{number} from {from} to {to} at {departure}, {delayed}",
            "at {departure} {number} leaves {from} for {to}; {delayed}",
            "{delayed}: {from} to {to}, {number}, {departure}",
        ),
        {"delayed": yes_no(("running late", "delayed"), ("on time", "as planned"))},
    ),
    Task(
        "weather",
        record_schema(
            {
                "city": TEXT,
                "temperature": integer_schema(-60, 60),
                "sky": enum_schema(*SKIES),
                "wind": integer_schema(0, 400),
            },
            "wind",
        ),
        sample_weather,
        (
            "{city} {temperature} degrees, {sky}[, wind {wind}]",
            "{sky} in {city} at {temperature}[ with wind of {wind}]",
            "[wind {wind}, ]{temperature} degrees and {sky} in {city}",
        ),
        {"sky": worded(**SKIES)},
    ),
    Task(
        "order",
        record_schema(
            {
                "id": integer_schema(1, 999999),
                "customer": TEXT,
                "items": {
                    "type": "array",
                    "items": object_schema({"product": TEXT, "count": integer_schema(1, 999)}),
                    "minItems": 1,
                    "maxItems": 3,
                },
                "paid": BOOLEAN,
            }
        ),
        sample_order,
        (
            "order {id} of {customer}: {items}, {paid}",
            "{customer} wants {items} (order {id}), {paid}",
            "{paid}: number {id}, {items} for {customer}",
        ),
        {"paid": yes_no(("already paid", "money received"), ("not paid yet", "payment is due"))},
    ),
    Task(
        "job",
        record_schema(
            {"title": TEXT, "company": TEXT, "city": TEXT, "salary": integer_schema(0, 999999), "remote": BOOLEAN},
            "city",
        ),
        sample_job,
        (
            "{company} seeks a {title}[ in {city}], {salary} a year, {remote}",
            "{title} at {company}[, {city}]; {remote}; pay {salary}",
            "{remote}: {title}[ in {city}] for {salary}, {company}",
        ),
        {"remote": yes_no(("work from home", "remote"), ("on site", "at the office"))},
    ),
    Task(
        "contact",
        record_schema(
            {
                "name": object_schema({"first": TEXT, "last": TEXT}),
                "phone": pattern_schema("^[+][0-9]{2} [0-9]{3} [0-9]{4}$"),
                "via": enum_schema(*CHANNELS),
            }
        ),
        sample_contact,
        (
            "{name.first} {name.last}, {phone}, {via}",
            "{via}: {name.last}, {name.first}, phone {phone}",
            "{phone} is {name.first} {name.last}; {via}",
        ),
        {"via": worded(**CHANNELS)},
    ),
    Task(
        "song",
        record_schema({"title": TEXT, "artist": TEXT, "seconds": integer_schema(1, 9999), "live": BOOLEAN}, "seconds"),
        sample_song,
        (
            "{artist} sings {title}[ for {seconds} seconds], {live}",
            "{title} by {artist}[, {seconds} seconds], {live}",
            "{live}: {title}, {artist}[, length {seconds}]",
        ),
        {"live": yes_no(("on stage", "concert take"), ("in the studio", "album take"))},
    ),
    Task(
        "recipe",
        record_schema(
            {
                "dish": TEXT,
                "minutes": integer_schema(1, 999),
                "serves": integer_schema(1, 99),
                "ingredients": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 4},
                "vegan": BOOLEAN,
            }
        ),
        sample_recipe,
        (
            "{dish} with {ingredients}, {minutes} minutes, for {serves}, {vegan}",
            "{vegan} {dish} for {serves} in {minutes} minutes: {ingredients}",
            "take {ingredients} for {dish}; {serves} people, {minutes} minutes, {vegan}",
        ),
        {"vegan": yes_no(("vegan", "purely plants"), ("not vegan", "with animal products"))},
    ),
    Task(
        "match",
        record_schema(
            {
                "home": TEXT,
                "away": TEXT,
                "goals": {
                    "type": "array",
                    "prefixItems": [integer_schema(0, 99), integer_schema(0, 99)],
                    "items": False,
                    "minItems": 2,
                },
                "final": BOOLEAN,
            }
        ),
        sample_match,
        (
            "{home} against {away} {goals}, {final}",
            "{final}: {home} host {away}, {goals}",
            "{goals} for {home} and {away}, {final}",
        ),
        {"final": yes_no(("match over", "full time"), ("still playing", "half time"))},
    ),
    Task(
        "transfer",
        record_schema({"sender": TEXT, "receiver": TEXT, "amount": NUMBER, "currency": CURRENCY, "date": DATE}, "date"),
        sample_transfer,
        (
            "{sender} sends {amount} {currency} to {receiver}[ on {date}]",
            "[{date}: ]{receiver} gets {amount} {currency} from {sender}",
            "{amount} {currency} from {sender} to {receiver}[, {date}]",
        ),
        {"currency": CURRENCY_WORDS},
    ),
    Task(
        "booking",
        record_schema(
            {
                "hotel": TEXT,
                "guest": TEXT,
                "arrival": DATE,
                "nights": integer_schema(1, 99),
                "room": enum_schema(*ROOMS),
                "breakfast": BOOLEAN,
            }
        ),
        sample_booking,
        (
            "{guest} at {hotel} from {arrival}, {nights} nights, {room}, {breakfast}",
            "{hotel}: {room} {breakfast} for {guest}, {arrival}, {nights} nights",
            "{nights} nights from {arrival} for {guest}, {hotel}, {room}, {breakfast}",
        ),
        {
            "room": worded(**ROOMS),
            "breakfast": yes_no(("with breakfast", "meal included"), ("no breakfast", "without meals")),
        },
    ),
    Task(
        "reminder",
        record_schema({"task": TEXT, "date": DATE, "time": TIME, "repeat": enum_schema(*REPEATS)}, "date"),
        sample_reminder,
        (
            "{task}[ on {date}] at {time}, {repeat}",
            "{repeat} at {time}[ from {date}]: {task}",
            "remind me at {time}[ on {date}] to {task}, {repeat}",
        ),
        {"repeat": worded(**REPEATS)},
    ),
    Task(
        "movie",
        record_schema(
            {"title": TEXT, "year": integer_schema(1880, 2100), "director": TEXT, "rating": NUMBER, "seen": BOOLEAN},
            "director",
        ),
        sample_movie,
        (
            "{title}, {year}[, by {director}], rated {rating}, {seen}",
            "{seen}: {title} ({year})[, director {director}], {rating} points",
            "[{director} made ]{title} in {year}; {rating} stars; {seen}",
        ),
        {"seen": yes_no(("already watched", "seen it"), ("not watched yet", "to see"))},
    ),
    Task(
        "measurement",
        record_schema(
            {
                "sensor": pattern_schema("^[A-Z]{2}-[0-9]{2}$"),
                "quantity": enum_schema(*QUANTITIES),
                "value": NUMBER,
                "time": TIME,
                "ok": BOOLEAN,
            }
        ),
        sample_measurement,
        (
            "{sensor} at {time}: {value} {quantity}, {ok}",
            "{value} {quantity} from {sensor}, {ok}, {time}",
            "{time} {ok}: sensor {sensor}, {quantity} {value}",
        ),
        {
            "quantity": worded(**QUANTITIES),
            "ok": yes_no(("looks fine", "normal"), ("faulty", "out of range")),
        },
    ),
    Task(
        "bug",
        record_schema(
            {
                "component": TEXT,
                "summary": TEXT,
                "severity": enum_schema(*SEVERITIES),
                "line": integer_schema(1, 99999),
                "open": BOOLEAN,
            },
            "line",
        ),
        sample_bug,
        (
            "{severity}, {component}: {summary}[ in line {line}], {open}",
            "{summary} in {component}[, line {line}]; {severity}; {open}",
            "{open}: {component}[ line {line}], {summary}, {severity}",
        ),
        {
            "severity": worded(**SEVERITIES),
            "open": yes_no(("unsolved", "still there"), ("fixed", "solved")),
        },
    ),
    Task(
        "city",
        record_schema(
            {
                "name": TEXT,
                "country": enum_schema(*COUNTRIES),
                "population": integer_schema(1, 99999999),
                "river": TEXT,
                "capital": BOOLEAN,
            },
            "river",
        ),
        sample_city,
        (
            "{name} in {country}[ on the {river}], {population} people, {capital}",
            "{capital}: {name}, {country}, {population}[, river {river}]",
            "{population} live in {name}[ by the {river}], {country}; {capital}",
        ),
        {
            "country": {json.dumps(code): (name,) for code, name in COUNTRIES.items()},
            "capital": yes_no(("the capital", "seat of government"), ("not the capital", "a town")),
        },
    ),
    Task(
        "pet",
        record_schema(
            {
                "name": TEXT,
                "kind": enum_schema("dog", "cat", "horse", "rabbit", "parrot"),
                "age": integer_schema(0, 99),
                "owner": TEXT,
                "vaccinated": BOOLEAN,
            },
            "owner",
        ),
        sample_pet,
        (
            "{name} the {kind}, {age} years[, owner {owner}], {vaccinated}",
            "[{owner} has ]a {kind} called {name}, {age}, {vaccinated}",
            "{vaccinated}: {kind} {name}[ of {owner}], aged {age}",
        ),
        {"vaccinated": yes_no(("vaccinated", "has its shots"), ("not vaccinated", "needs shots"))},
    ),
    Task(
        "meeting",
        record_schema(
            {
                "topic": TEXT,
                "day": enum_schema("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"),
                "slot": object_schema({"start": TIME, "minutes": integer_schema(1, 999)}),
                "people": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 5},
                "online": BOOLEAN,
            }
        ),
        sample_meeting,
        (
            "{topic} on {day} at {slot.start} for {slot.minutes} minutes with {people}, {online}",
            "{people} meet {day} {slot.start}, {slot.minutes} minutes, {online}: {topic}",
            "{online} {day}: {topic}, {slot.start}, {slot.minutes} minutes, {people}",
        ),
        {"online": yes_no(("by video", "online"), ("in person", "face to face"))},
    ),
)

TASKS: Mapping[str, Task] = {task.name: task for task in _LIST}
"""The tasks by name."""
