"""Email addresses: the package ``email_validator``, and the lengths that the grammar's README.md states."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator

from checked_language import Language, problem_of
from email_validator import EmailNotValidError, validate_email

LONGEST_ATOM = {1: (64,), 2: (31, 32), 3: (20, 20, 20), 4: (15, 15, 15, 15)}


def parse(text: str) -> object:
    # Reserved names (.test, .local) are still names.
    return validate_email(text, check_deliverability=False, globally_deliverable=False)


def covers(text: str) -> bool:
    local, _, domain = text.rpartition("@")
    atoms, labels = local.split("."), domain.split(".")
    if not text.isascii() or len(atoms) not in LONGEST_ATOM or '"' in local:
        return False
    fits = all(len(atom) <= most for atom, most in zip(atoms, LONGEST_ATOM[len(atoms)], strict=True))
    longest = 63 if len(labels) == 2 else 31
    is_plain = all(label[2:4] != "--" and len(label) <= longest for label in labels[:-1])
    return fits and is_plain and 2 <= len(labels) <= 6 and bool(re.fullmatch("[A-Za-z]{2,24}", labels[-1]))


def documents(rng: random.Random) -> Iterator[str]:
    names = ["ada", "grace.hopper", "o'neill", "first_last", "x", "j.r.r", "a+tag", "info", "no-reply", "k9"]
    hosts = ["example", "mail.example", "a-b", "cs.uni-x", "x1", "very-long-name-of-a-company"]
    tops = ("com", "org", "co.uk", "info", "de")
    while True:
        number = str(rng.randrange(1000)) if rng.random() < 0.5 else ""
        yield f"{rng.choice(names)}{number}@{rng.choice(hosts)}{number}.{rng.choice(tops)}"


LANGUAGE = Language(problem_of(parse, EmailNotValidError), documents, covers, alphabet=string.punctuation)
