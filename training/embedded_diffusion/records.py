"""Records of each task, sampled value by value."""

from __future__ import annotations

from training.embedded_diffusion.schemas import (
    AIRLINES,
    CHANNELS,
    COUNTRIES,
    CURRENCIES,
    LETTERS,
    QUANTITIES,
    REPEATS,
    ROOMS,
    SEVERITIES,
    SKIES,
    Record,
)
from training.embedded_diffusion.values import ValueSampler

# Records.  What is optional is drawn in its place, so that properties keep the order of the schema.


def sample_person(draw: ValueSampler) -> Record:
    record: Record = {"name": draw.person(), "age": draw.integer(1, 99, kept=(60, 69))}
    if draw.chance():
        record["city"] = draw.word("city")
    if draw.chance():
        record["email"] = f"{record['name'].split()[0].lower()}@{draw.word('domain')}.{draw.word('ending')}"
        if not record["email"].isascii():
            del record["email"]  # an address of ASCII letters
    return record


def sample_address(draw: ValueSampler) -> Record:
    record: Record = {
        "street": f"{draw.word('street')} {draw.word('street_kind')}",
        "number": draw.integer(1, 250, kept=(60, 79)),
        "zip": f"{draw.integer(10000, 99999, kept=(60000, 69999))}",
        "city": draw.word("city"),
    }
    if draw.chance(0.6):
        record["country"] = draw.one_of(tuple(COUNTRIES))
    return record


def sample_event(draw: ValueSampler) -> Record:
    record: Record = {"title": draw.title(), "date": draw.date(), "start": draw.time()}
    if draw.chance():
        record["place"] = draw.word("city")
    return {**record, "public": draw.chance()}


def sample_product(draw: ValueSampler) -> Record:
    return {
        "name": f"{draw.word('adjective').lower()} {draw.word('good')}",
        "price": draw.decimal(1, 999, kept=(300, 399)),
        "currency": draw.one_of(tuple(CURRENCIES)),
        "stock": draw.chance(),
    }


def sample_book(draw: ValueSampler) -> Record:
    record: Record = {
        "title": draw.title(),
        "author": draw.person(),
        "year": draw.integer(1850, 2030, kept=(1960, 1969)),
    }
    if draw.chance():
        record["pages"] = draw.integer(40, 990, kept=(300, 399))
    return record


def sample_flight(draw: ValueSampler) -> Record:
    origin, target = draw.words("city", 2)
    return {
        "number": f"{draw.one_of(AIRLINES)}{draw.integer(100, 9999, kept=(4000, 4999))}",
        "from": origin,
        "to": target,
        "departure": draw.time(),
        "delayed": draw.chance(),
    }


def sample_weather(draw: ValueSampler) -> Record:
    record: Record = {
        "city": draw.word("city"),
        "temperature": draw.integer(-25, 42, kept=(20, 24)),
        "sky": draw.one_of(tuple(SKIES)),
    }
    if draw.chance():
        record["wind"] = draw.integer(1, 120, kept=(40, 49))
    return record


def sample_order(draw: ValueSampler) -> Record:
    goods = draw.words("good", 2 if draw.chance(0.4) else 1)
    return {
        "id": draw.integer(1000, 99999, kept=(50000, 59999)),
        "customer": draw.person(),
        "items": [{"product": good, "count": draw.integer(1, 60, kept=(30, 39))} for good in goods],
        "paid": draw.chance(),
    }


def sample_job(draw: ValueSampler) -> Record:
    record: Record = {"title": draw.word("job"), "company": draw.word("company")}
    if draw.chance():
        record["city"] = draw.word("city")
    return {**record, "salary": draw.integer(18, 180, kept=(60, 69)) * 500, "remote": draw.chance()}


def sample_contact(draw: ValueSampler) -> Record:
    kept = (600, 699)
    return {
        "name": {"first": draw.word("first"), "last": draw.word("surname")},
        "phone": f"+{draw.integer(10, 99, kept=(60, 69))} {draw.integer(100, 999, kept=kept)} "
        f"{draw.integer(1000, 9999, kept=(6000, 6999))}",
        "via": draw.one_of(tuple(CHANNELS)),
    }


def sample_song(draw: ValueSampler) -> Record:
    record: Record = {"title": draw.title(), "artist": draw.person()}
    if draw.chance():
        record["seconds"] = draw.integer(90, 600, kept=(300, 349))
    return {**record, "live": draw.chance()}


def sample_recipe(draw: ValueSampler) -> Record:
    return {
        "dish": f"{draw.word('ingredient')} {draw.word('dish')}",
        "minutes": draw.integer(5, 180, kept=(60, 69)),
        "serves": draw.integer(1, 12, kept=(7, 7)),
        "ingredients": draw.words("ingredient", 2 + draw.chance()),
        "vegan": draw.chance(),
    }


def sample_match(draw: ValueSampler) -> Record:
    home, away = (f"{draw.word('city')} {draw.word('team')}" for _ in range(2))
    goals = [draw.integer(0, 9, kept=(6, 6)) for _ in range(2)]
    return {"home": home, "away": away, "goals": goals, "final": draw.chance()}


def sample_transfer(draw: ValueSampler) -> Record:
    record: Record = {
        "sender": draw.person(),
        "receiver": draw.person(),
        "amount": draw.decimal(1, 9999, kept=(3000, 3999)),
        "currency": draw.one_of(tuple(CURRENCIES)),
    }
    if draw.chance():
        record["date"] = draw.date()
    return record


def sample_booking(draw: ValueSampler) -> Record:
    return {
        "hotel": f"Hotel {draw.word('hotel')}",
        "guest": draw.person(),
        "arrival": draw.date(),
        "nights": draw.integer(1, 21, kept=(12, 14)),
        "room": draw.one_of(tuple(ROOMS)),
        "breakfast": draw.chance(),
    }


def sample_reminder(draw: ValueSampler) -> Record:
    record: Record = {"task": f"{draw.word('verb')} the {draw.word('chore')}"}
    if draw.chance():
        record["date"] = draw.date()
    return {**record, "time": draw.time(), "repeat": draw.one_of(tuple(REPEATS))}


def sample_movie(draw: ValueSampler) -> Record:
    record: Record = {"title": draw.title(), "year": draw.integer(1920, 2030, kept=(1960, 1969))}
    if draw.chance():
        record["director"] = draw.person()
    return {**record, "rating": draw.decimal(1, 9, kept=(6, 6), digits=1), "seen": draw.chance()}


def sample_measurement(draw: ValueSampler) -> Record:
    letters = "".join(draw.random.choices(LETTERS[:6], k=2)) if not draw.unseen else draw.one_of(("AF", "FA"))
    return {
        "sensor": f"{letters}-{draw.integer(10, 99, kept=(60, 69))}",
        "quantity": draw.one_of(tuple(QUANTITIES)),
        "value": draw.decimal(0, 999, kept=(300, 399)),
        "time": draw.time(),
        "ok": draw.chance(),
    }


def sample_bug(draw: ValueSampler) -> Record:
    record: Record = {
        "component": draw.word("component"),
        "summary": draw.word("fault"),
        "severity": draw.one_of(tuple(SEVERITIES)),
    }
    if draw.chance():
        record["line"] = draw.integer(1, 2000, kept=(600, 699))
    return {**record, "open": draw.chance()}


def sample_city(draw: ValueSampler) -> Record:
    record: Record = {
        "name": draw.word("city"),
        "country": draw.one_of(tuple(COUNTRIES)),
        "population": draw.integer(2, 9000, kept=(600, 699)) * 1000,
    }
    if draw.chance():
        record["river"] = draw.word("river")
    return {**record, "capital": draw.chance()}


def sample_pet(draw: ValueSampler) -> Record:
    record: Record = {
        "name": draw.word("pet"),
        "kind": draw.one_of(("dog", "cat", "horse", "rabbit", "parrot")),
        "age": draw.integer(1, 25, kept=(12, 14)),
    }
    if draw.chance():
        record["owner"] = draw.person()
    return {**record, "vaccinated": draw.chance()}


def sample_meeting(draw: ValueSampler) -> Record:
    return {
        "topic": f"{draw.word('component')} {draw.word('chore')}",
        "day": draw.one_of(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")),
        "slot": {"start": draw.time(), "minutes": draw.integer(3, 36, kept=(12, 14)) * 5},
        "people": draw.words("first", 2 + draw.chance()),
        "online": draw.chance(),
    }
