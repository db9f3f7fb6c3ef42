"""Forms of ECMA-262 against Node.js, and scripts and binary properties against other sources of Unicode data."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from regex_reference import Universe

from structgen.frontends.regex import DialectName, regex
from structgen.frontends.regex.code_point import (
    category,
    complement,
    contains,
    find_listed,
    intersection,
    listed_names,
    union,
)
from structgen.grammar.nodes import CharClass
from structgen.grammar.nodes.description import Described

NODE = shutil.which("node")
SURROGATES = ((0xD800, 0xDFFF),)

FORMS = [
    r"(?<year>a+)-?", r"(?<$>a)(?<_b>b)", r"\cA|\cz", r"[\cA-\cC]+", r"\u{43}+", r"[\u{43}-\u{1F600}]", r"\u{0000061}b",
    r"\u{1F600}", r"\ud83d\ude00", r"\p{Lu}\p{Ll}*", r"[^\p{L}]", r"\P{Script=Greek}+", r"[\p{sc=Grek}\p{sc=Latn}]{2}",
    r"\p{scx=Grek}", r"\p{Script_Extensions=Greek}-", r"\p{Emoji}", r"\p{Emoji_Presentation}", r"[\p{AHex}\-]+",
    r"\p{ASCII_Hex_Digit}+", r"\p{ID_Start}\p{ID_Continue}*", r"\p{Alphabetic}+", r"(?!\p{Lu})\p{L}+", r"\p{gc=Lu}",
]  # fmt: skip
LETTERS = ["a", "b", "C", "-", "α", "́", "\x01", "\U0001f600"]

PROGRAM = r"""
const { forms, texts } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const answer = forms.map((form) => texts.filter((text) => new RegExp(`^(?:${form})$`, "u").test(text)));
console.log(JSON.stringify(answer));
"""


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_forms_as_node_reads_them() -> None:
    """Every form has the texts, of up to three characters, that V8 gives it under the flag ``u``."""
    texts = ["".join(letters) for size in range(4) for letters in product(LETTERS, repeat=size)]
    question = json.dumps({"forms": FORMS, "texts": texts})
    ran = subprocess.run(
        [str(NODE), "-e", PROGRAM], input=question, capture_output=True, text=True, encoding="utf-8", check=True
    )
    universe = Universe(texts)
    for form, found in zip(FORMS, json.loads(ran.stdout), strict=True):
        members = universe.members(regex(form, dialect="ecma"))
        assert {text for text in texts if text in members} == set(found), form
        assert found, form


@cache
def every_character() -> str:
    return "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF)


def ranges_by(source: Any, name: str) -> tuple[tuple[int, int], ...]:
    """The characters of a property by the package ``regex``."""
    found: list[tuple[int, int]] = []
    for run in source.compile(rf"\p{{{name}}}+").finditer(every_character()):
        first, last = ord(run[0][0]), ord(run[0][-1])
        across = first < 0xD800 and last > 0xDFFF
        found += [(first, 0xD7FF), (0xE000, last)] if across else [(first, last)]
    return tuple(found)


CHECKED = [("sc", "Greek"), ("scx", "Cyrl"), ("bin", "Alphabetic")]


@pytest.mark.parametrize(("kind", "name"), CHECKED)
def test_the_table_agrees_with_another_package(kind: str, name: str) -> None:
    """The package ``regex`` has data of its own, of another version: characters that Python knows are compared."""
    source = pytest.importorskip("regex", reason="regex is not installed")
    ours, theirs = find_listed(kind, name), ranges_by(source, name if kind == "bin" else f"{kind}={name}")
    assert ours is not None
    known = complement(union(category("Cn"), SURROGATES))
    assert intersection(ours, known) == intersection(union(theirs), known)
    assert intersection(ours, known)


@pytest.mark.nightly
@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_table_is_what_node_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "support" / "outcomes"))
    import unicode_properties as made

    page = made.PAGE.read_text(encoding="utf-8")
    version, _ = made.ranges_of_node([])
    if not page.startswith(f"# Unicode {version}:"):
        pytest.skip(f"node has Unicode {version}")
    monkeypatch.setattr(made, "PAGE", tmp_path / "page.txt")
    made.main()
    assert made.PAGE.read_text(encoding="utf-8") == page


def test_scripts_divide_the_characters() -> None:
    """Each character has at most one script, and none of the private use; extensions are scripts too."""
    own = {names: find_listed("sc", name) for name, names in listed_names("sc").items()}
    sizes = sum(high - low + 1 for ranges in own.values() if ranges for low, high in ranges)
    whole = union(*(ranges for ranges in own.values() if ranges))
    assert sizes == sum(high - low + 1 for low, high in whole)
    assert not contains(whole, 0xE000)
    assert listed_names("scx").keys() == listed_names("sc").keys()
    assert len(own) == 174


def characters(pattern: str, dialect: DialectName) -> Any:
    grammar = regex(pattern, dialect=dialect)
    assert isinstance(grammar, Described)
    assert isinstance(grammar.item, CharClass)
    return grammar.item.ranges


@pytest.mark.parametrize(
    ("pattern", "kind", "name"),
    [
        (r"\p{Greek}", "sc", "Grek"),
        (r"\p{greek}", "sc", "Grek"),
        (r"\p{isGreek}", "sc", "Grek"),
        (r"\p{Script:old-italic}", "sc", "Ital"),
        (r"\p{SCX=grek}", "scx", "Greek"),
        (r"\p{alpha}", "bin", "Alphabetic"),
        (r"\p{Emoji Presentation}", "bin", "EPres"),
    ],
)
def test_rust_has_loose_names(pattern: str, kind: str, name: str) -> None:
    listed = find_listed(kind, name)
    assert listed is not None
    assert characters(pattern, "rust") == listed
    assert characters(pattern.replace(r"\p", r"\P"), "rust") == union(complement(union(listed, SURROGATES)))


def test_rust_names_as_llguidance_reads_them() -> None:
    """Its regular expressions are those of the crate; a name is known to both or to neither."""
    llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")
    tokenizer = llguidance.LLTokenizer("byte")
    names = [*listed_names("bin"), "Greek", "sc=Han", "scx=Deva", "gc=Greek", "Script=Nope", "InGreek", "sc"]
    names += ["IsGreek", "_isGreek", "is_c", "isc", "WSpace", "is white space"]
    refused = []
    for name in names:
        theirs = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_regex(rf"\p{{{name}}}"))
        try:
            regex(rf"\p{{{name}}}", dialect="rust")
            is_known = True
        except ValueError:
            is_known = False
        if is_known == theirs.is_error():
            refused.append((name, is_known))
    assert refused == []
