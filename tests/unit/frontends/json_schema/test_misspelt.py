"""Names that resemble a keyword and are none: a warning, and a line of the report."""

from __future__ import annotations

import json
import warnings

import pytest

from structgen.errors import KeywordWarning
from structgen.frontends.json_schema import forget_known, json_schema
from structgen.frontends.json_schema.normal.schema_reader import CONSTRAINTS
from structgen.frontends.json_schema.report import KEYWORDS
from structgen.frontends.json_schema.source.dialect import ANNOTATIONS
from structgen.grammar.nodes.description import Described, Status


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "object", "propertees": {}}, {"#/propertees": "properties"}),
        ({"requried": ["a"], "not": {"const": 3}}, {"#/requried": "required"}),
        (
            {"properties": {"a": {"type": "string", "maxlength": 3}}, "addtionalProperties": False},
            {"#/properties/a/maxlength": "maxLength", "#/addtionalProperties": "additionalProperties"},
        ),
        ({"items": {"anyOf": [{"minimun": 3}, {"type": "null"}]}}, {"#/items/anyOf/0/minimun": "minimum"}),
        ({"x-maxLenght": 3, "_uniqueItems": True, "descripton": "", "unit": "m", "title": "t", "$defs": {}}, {}),
        ({"properties": {"maxlength": {"enum": [{"typ": 1}], "default": {"requried": 1}}}}, {}),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "const": 1, "id": "http://a/"}, {}),
    ],
)
def test_misspelt_keywords_are_warned_of(schema: dict[str, object], told: dict[str, str]) -> None:
    """Names near to a constraint are, with their place; names of annotations, extensions and in values are not."""
    for given in (schema, json.dumps(schema)):
        forget_known()
        with warnings.catch_warnings(record=True) as met:
            warnings.simplefilter("always")
            grammar = json_schema(given)
        assert [str(each.message) for each in met] == [
            f"json schema {where}: {where.rsplit('/', 1)[1]!r} is no keyword of any specification, and constrains "
            f"nothing; is {keyword!r} meant?"
            for where, keyword in told.items()
        ]
        assert all(each.category is KeywordWarning and each.filename == __file__ for each in met)
        assert isinstance(grammar, Described)
        entries = {entry.where: entry for entry in grammar.description.entries}
        for where, keyword in told.items():
            assert entries[where].status is Status.ANNOTATION
            assert entries[where].detail == f"no keyword of any specification; is {keyword!r} meant?"
        assert sum("no keyword" in entry.detail for entry in entries.values()) == len(told)


def test_a_name_is_warned_of_once() -> None:
    """With its first place, however many there are."""
    properties = {f"p{index}": {"type": "string", "maxlength": index} for index in range(30)}
    with pytest.warns(KeywordWarning) as met:
        json_schema({"type": "object", "properties": properties})
    (text,) = [str(each.message) for each in met]
    assert text.startswith("json schema #/properties/p0/maxlength: ")
    assert "constrains nothing, as in 29 other places; is 'maxLength' meant?" in text


def test_every_name_is_a_constraint_or_an_annotation() -> None:
    """The native planner takes all others for unknown."""
    assert {*CONSTRAINTS, *ANNOTATIONS} == {*KEYWORDS}
