"""The departures of the two test validators from the specification, and their corrections."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import jsonschema_rs
import pytest
from json_validators import Judge, python_pattern

DRAFT_4 = "http://json-schema.org/draft-04/schema#"

# (schema, text, the specification's verdict, the validator that departs from it)
DEPARTURES: list[tuple[Any, str, bool, str]] = [
    # ECMA-262, 22.2.2.4: without the flag m, $ matches at the end of the input only.
    ({"pattern": "^a$"}, '"a\\n"', False, "jsonschema"),
    ({"patternProperties": {"^a$": False}}, '{"a\\n": 1}', True, "jsonschema"),
    # 22.2.2.9: \d is 0-9, \w is A-Z, a-z, 0-9 and _ (without the flag i).
    ({"pattern": "^\\d$"}, '"٣"', False, "jsonschema"),
    ({"pattern": "^[\\w-]$"}, '"é"', False, "jsonschema"),
    ({"pattern": "^\\W$"}, '"é"', True, "jsonschema"),
    ({"pattern": "é\\b"}, '"é"', False, "both"),
    # 12.2, 12.3: U+FEFF is white space, U+0085 is not; line terminators are \n, \r, U+2028, U+2029.
    ({"pattern": "^\\s$"}, '"\ufeff"', True, "jsonschema"),
    ({"pattern": "^[^\\S]$"}, '"\u0085"', False, "jsonschema"),
    ({"pattern": "^.$"}, '"\u2028"', False, "both"),
    ({"pattern": "^.$"}, '"\\r"', False, "both"),
    # RFC 5321, 4.1.2
    ({"format": "email"}, '"a b@c"', False, "jsonschema"),
    ({"format": "email"}, '"a@b@c"', False, "jsonschema"),
    # RFC 3339, 5.6 and 5.7
    ({"format": "date-time"}, '"2020-01-01T00:00:00Z\\n"', False, "jsonschema"),
    ({"format": "date-time"}, '"1998-12-31T23:59:60Z"', True, "jsonschema"),
    ({"format": "date-time"}, '"1999-01-01T09:29:60.5+09:30"', True, "jsonschema"),
    # Drafts do not list all formats; structgen asserts each of them in every draft.
    ({"$schema": DRAFT_4, "format": "uuid"}, '"x"', False, "both"),
    ({"$schema": DRAFT_4, "format": "date"}, '"2021-02-29"', False, "jsonschema"),
    # JSON Schema Core, 8.1.1: $schema has no meaning in a schema that is not a resource.
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$schema": DRAFT_4, "type": "integer"}}}, "1.0", True, "jsonschema"),
    # RFC 8259, 6: a number is its decimal value.
    ({"multipleOf": 0.1}, "0.3", True, "jsonschema"),
    ({"multipleOf": 3}, "12007974102636318587.0", False, "jsonschema"),
    ({"exclusiveMinimum": 0.3}, "0.30000000000000000000001", True, "both"),
]


@pytest.mark.parametrize(("schema", "text", "expected", "departs"), DEPARTURES)
def test_departures(schema: Any, text: str, expected: bool, departs: str) -> None:
    """Both corrected judges agree with the specification; uncorrected, the named one does not."""
    assert Judge(schema).has_both
    assert Judge(schema).is_valid(text) == expected
    value = json.loads(text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    found = {
        "jsonschema": kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid(value),
        "jsonschema-rs": jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value),
    }
    wrong = [name for name, said in found.items() if said != expected]
    assert wrong == (list(found) if departs == "both" else [departs])


def test_moments_that_are_no_leap_seconds() -> None:
    """Second 60 is the last of a day in UTC."""
    judge = Judge({"format": "date-time"})
    for text in ("1998-12-31T23:58:60Z", "1998-12-31T23:59:60+00:01", "1998-12-31T22:59:60Z"):
        assert not judge.is_valid(json.dumps(text))


def test_translated_patterns() -> None:
    """Classes and negated ones, named groups, and characters that ``re`` warns about are translated."""
    for pattern, good, bad in (
        (r"^[\s\S]+$", "a\n\u0085", ""),
        (r"^[^\d.]$", "a", "1"),
        (r"^[[&&a|]$", "[", "b"),
        (r"^(?<year>\d{4})\/[$]$", "2020/$", "2020/"),
        (r"^[^]$", "\n", ""),
        ("^a|\\|$", "ab", "b"),
        ("^[+--]$", ",", "."),
        ("^[--0]$", "/", "1"),
        ("^[a-c--0]$", "/", "d"),
    ):
        assert re.search(python_pattern(pattern), good)
        assert not re.search(python_pattern(pattern), bad)
