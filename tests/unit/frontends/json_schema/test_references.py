"""References: anchors, identifiers, other documents, dynamic scopes, dialects and vocabularies."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
import referencing
from referencing.jsonschema import DRAFT7, DRAFT202012
from schema_as_written import as_written as json_schema

from structgen.errors import GrammarError, LimitExceeded, UnsupportedFeature
from structgen.frontends.json_schema.source.location import absolute_uri
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described
from structgen.testing.reference import ReferenceMatcher

DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"


def accepts(grammar: Grammar, value: Any) -> bool:
    """Whether the output of ``json.dumps`` is accepted, by the reference implementation."""
    matcher, data = ReferenceMatcher(grammar), json.dumps(value, ensure_ascii=False).encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


# Resolution of URIs: the examples of RFC 3986, section 5.4

NORMAL = """
g:h g:h|g http://a/b/c/g|./g http://a/b/c/g|g/ http://a/b/c/g/|/g http://a/g|//g http://g|?y http://a/b/c/d;p?y
g?y http://a/b/c/g?y|;x http://a/b/c/;x|g;x http://a/b/c/g;x|g;x?y http://a/b/c/g;x?y|. http://a/b/c/|./ http://a/b/c/
.. http://a/b/|../ http://a/b/|../g http://a/b/g|../.. http://a/|../../ http://a/|../../g http://a/g
../../../g http://a/g|../../../../g http://a/g|/./g http://a/g|/../g http://a/g|g. http://a/b/c/g.|.g http://a/b/c/.g
g.. http://a/b/c/g..|..g http://a/b/c/..g|./../g http://a/b/g|./g/. http://a/b/c/g/|g/./h http://a/b/c/g/h
g/../h http://a/b/c/h|g;x=1/./y http://a/b/c/g;x=1/y|g;x=1/../y http://a/b/c/y|g?y/./x http://a/b/c/g?y/./x
http:g http:g
"""


@pytest.mark.parametrize(("reference", "target"), [p.split() for p in NORMAL.strip().replace("\n", "|").split("|")])
def test_relative_references(reference: str, target: str) -> None:
    """URIs of every scheme are resolved alike."""
    assert absolute_uri("http://a/b/c/d;p?q", reference) == target
    assert absolute_uri("odd://a/b/c/d;p?q", reference) == (
        target if ":" in reference else target.replace("http", "odd")
    )


# Other documents


OTHERS: dict[str, Any] = {
    "http://x/count.json": {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {
        "n": {"$ref": "#/definitions/m", "minimum": 100}, "m": {"type": "integer", "minimum": 2},
    }},
    "http://x/dir/names.json":
        '{"$anchor": "top", "$defs": {"in": {"$id": "/inner.json", "type": "null"}}, "enum": ["a"]}',
    "http://x/true.json": True,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["mapping", "referencing"])
def test_documents_of_a_registry(kind: str) -> None:
    """Each document is read in its own draft, and found by its URI, by an anchor or by an identifier inside."""
    registry: Any = OTHERS
    if kind == "referencing":
        contents = {uri: json.loads(value) if isinstance(value, str) else value for uri, value in OTHERS.items()}
        registry = referencing.Registry().with_resources(
            (uri, DRAFT202012.create_resource(value)) for uri, value in contents.items()
        )
    grammar = json_schema(
        {
            "$id": "http://x/main.json",
            "properties": {
                "n": {"$ref": "count.json#/definitions/n"},
                "a": {"$ref": "dir/names.json#top"},
                "i": {"$ref": "inner.json"},
                "t": {"$ref": "true.json"},
            },
        },
        registry=registry,
    )
    assert accepts(grammar, {"n": 2, "a": "a", "i": None, "t": {}})  # draft 7: siblings of $ref are ignored
    for value in ({"n": 1}, {"a": "b"}, {"i": 1}):
        assert not accepts(grammar, value)
    assert isinstance(grammar, Described)
    where = {entry.where: entry.detail for entry in grammar.description.entries}
    assert where["http://x/count.json#/definitions/n/minimum"] == "ignored beside $ref in draft 7"
    assert "http://x/dir/names.json#/enum" in where


def test_draft_of_a_resource_without_schema() -> None:
    """A ``referencing`` resource has its own draft; in a mapping the draft of the given schema holds."""
    old = {"$ref": "#/definitions/m", "minimum": 100, "definitions": {"m": {"type": "integer"}}}
    registry: Any = referencing.Registry().with_resource("http://x/o", DRAFT7.create_resource(old))
    main = {"$schema": DRAFT_2020, "$ref": "http://x/o"}
    assert accepts(json_schema(main, registry=registry), 1)
    assert not accepts(json_schema(main, registry={"http://x/o": old}), 1)


def test_faults_in_other_documents_name_them() -> None:
    """The pointer of an error begins with the URI of the document."""
    with pytest.raises(GrammarError) as caught:
        json_schema({"$ref": "http://x/a"}, registry={"http://x/a": {"properties": {"b": {"type": "nil"}}}})
    assert caught.value.subject == "json schema http://x/a#/properties/b/type"
    with pytest.raises(GrammarError) as caught:
        json_schema({"$ref": "http://x/a#/b"}, registry={"http://x/a": {}})
    assert caught.value.evidence == "# has no 'b'"
    with pytest.raises(UnsupportedFeature) as refused:
        json_schema({"$id": "http://x/", "$ref": "dir/b"}, registry={"http://x/a": {}})
    assert refused.value.feature == "$ref"
    assert "'http://x/dir/b'" in refused.value.remedy


def test_metaschemas_are_known() -> None:
    """The metaschema of a draft is found without a registry."""
    uri = "http://json-schema.org/draft-04/schema#/definitions/positiveInteger"
    assert accepts(json_schema({"$ref": uri}), 3)
    assert not accepts(json_schema({"$ref": uri}), -3)


# Drafts and vocabularies


def test_draft_of_the_caller_goes_first() -> None:
    """``draft`` overrides ``$schema``."""
    schema = {"$schema": DRAFT_2020, "const": 1}
    assert not accepts(json_schema(schema), 2)
    assert accepts(json_schema(schema, draft="4"), 2)
    with pytest.raises(ValueError, match=r"draft is '5'; give one of 4, 6, 7, 2019-09, 2020-12"):
        json_schema(schema, draft="5")


def test_vocabularies_of_a_metaschema() -> None:
    """Keywords of vocabularies that a metaschema leaves out are annotations; a required unknown one is refused."""
    vocabulary = "https://json-schema.org/draft/2020-12/vocab/"
    meta = {"$schema": DRAFT_2020, "$vocabulary": {f"{vocabulary}core": True, f"{vocabulary}applicator": True}}
    schema = {"$schema": "http://x/meta", "minimum": 5, "properties": {"a": False}}
    grammar = json_schema(schema, registry={"http://x/meta": meta})
    assert accepts(grammar, 1)
    assert not accepts(grammar, {"a": 1})
    odd = meta | {"$vocabulary": {"http://x/odd": True}}
    with pytest.raises(UnsupportedFeature) as caught:
        json_schema(schema, registry={"http://x/meta": odd})
    assert caught.value.feature == "$schema"
    odd["$vocabulary"]["http://x/odd"] = False
    assert accepts(json_schema(schema, registry={"http://x/meta": odd}), 1)


def test_embedded_resource_of_another_draft() -> None:
    """A resource within a document is read in the draft that it declares."""
    inner = {"$id": "http://x/in", "$schema": "http://json-schema.org/draft-07/schema#", "$defs": {"s": {}},
             "properties": {"a": {"$ref": "#/$defs/s", "type": "null"}}}  # fmt: skip
    schema = {"$schema": DRAFT_2020, "$ref": "http://x/in", "$defs": {"in": inner}}
    assert accepts(json_schema(schema), {"a": 1})
    assert not accepts(json_schema(schema | {"$defs": {"in": inner | {"$schema": DRAFT_2020}}}), {"a": 1})


def test_identifiers_are_no_data() -> None:
    """``$id`` within ``enum``, or under a keyword without schemas, names nothing."""
    data = {"$id": "http://x/in", "type": "null"}
    for holder in ({"enum": [data, 1]}, {"x-own": data}):
        with pytest.raises(UnsupportedFeature):
            json_schema({"anyOf": [{"$ref": "http://x/in"}], "$defs": {"a": holder}})


# Dynamic scopes


def dynamic_bundle(rng: random.Random) -> dict[str, Any]:
    """Resources that refer to each other, each perhaps with its own dynamic anchor."""
    count = 4
    names = [f"r{index}" for index in range(count)]
    resources = {}
    for index, name in enumerate(names):
        anchor = rng.choice(["$dynamicAnchor", "$dynamicAnchor", "$anchor"])
        node: dict[str, Any] = {"$id": f"http://x/{name}", "$defs": {"d": {anchor: "n", "const": index}}}
        node["properties"] = {
            "a": {"$ref": rng.choice(names)},
            "b": {"$ref": f"{rng.choice(names)}#/$defs/e"},
            "c": {"$dynamicRef": rng.choice(["#n", f"{rng.choice(names)}#n"])},
        }
        node["$defs"]["e"] = {"properties": {"a": {"$ref": rng.choice(names)}, "c": {"$dynamicRef": "#n"}}}
        resources[name] = node
    return {"$schema": DRAFT_2020, "$id": "http://x/", "$ref": "r0", "$defs": resources}


def recursive_bundle(rng: random.Random) -> dict[str, Any]:
    """The same with ``$recursiveRef``.

    All resources have the anchor or none has it. Otherwise ``jsonschema`` lets a resource without it end the search,
    while the specification says that the outermost anchor counts.
    """
    names = [f"r{index}" for index in range(4)]
    is_anchor = rng.random() < 0.7
    resources = {}
    for index, name in enumerate(names):
        node: dict[str, Any] = {"$id": f"http://x/{name}", "$recursiveAnchor": is_anchor}
        node["properties"] = {
            "a": {"$ref": rng.choice(names)},
            "b": {"$ref": rng.choice(names)},
            "c": {"$recursiveRef": "#"},
            "v": {"const": index},
        }
        resources[name] = node
    return {"$schema": DRAFT_2019, "$id": "http://x/", "$recursiveAnchor": rng.random() < 0.5, "$ref": "r0",
            "$defs": resources}  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_dynamic_scopes_agree_with_jsonschema(seed: int) -> None:
    """On random paths through random resources, a dynamic reference has the target that ``jsonschema`` finds."""
    rng = random.Random(seed)
    for bundle, leaf in ((dynamic_bundle(rng), "c"), (recursive_bundle(rng), "v")):
        oracle = jsonschema.validators.validator_for(bundle)(bundle)
        start = ReferenceMatcher(json_schema(bundle))
        outcomes = set()
        for _ in range(40):
            value: Any = {leaf: rng.randrange(4)}
            for _ in range(rng.randrange(4)):
                value = {rng.choice("abc" if leaf == "v" else "ab"): value}
            matcher, data = start.fork(), json.dumps(value).encode()
            is_member = matcher.accept_bytes(data) == len(data) and matcher.is_accepting
            assert is_member == oracle.is_valid(value), (bundle, value)
            outcomes.add(is_member)
        assert outcomes == {True, False}


def test_dynamic_scopes_are_limited() -> None:
    """Instances of resources count against a limit, and their depth needs no recursion."""
    deep: Any = {}
    for _ in range(3_000):
        deep = {"not": deep}
    bundle = dynamic_bundle(random.Random(1)) | {"x-deep": deep}
    assert isinstance(json_schema(bundle), Grammar)
    bundle["$defs"]["r0"]["x-wide"] = [[] for _ in range(2_000)]
    with pytest.raises(LimitExceeded):
        json_schema(bundle, limits=Limits(grammar_nodes=1_500))


def test_report_of_dynamic_references() -> None:
    """Keywords of a resource that exists in several dynamic scopes are reported once."""
    grammar = json_schema(dynamic_bundle(random.Random(3)))
    assert isinstance(grammar, Described)
    where = [entry.where for entry in grammar.description.entries]
    assert len(where) == len(set(where))
    enforced = {entry.where for entry in grammar.description.entries if entry.status.value == "enforced"}
    assert "#/$defs/r0/properties/c/$dynamicRef" in enforced
