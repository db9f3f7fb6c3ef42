"""Lazy repetition in terminals: the language of Python's backtracking match."""

from __future__ import annotations

import re
from itertools import product

import pytest

from structgen.errors import UnsupportedFeature
from structgen.frontends.lark import lark
from structgen.testing.small_scope import language


def taken_whole(pattern: str, alphabet: str, max_length: int) -> set[bytes]:
    """The texts that ``re.match`` matches completely: those that Lark can take as one token."""
    found = set()
    for length in range(max_length + 1):
        for letters in product(alphabet, repeat=length):
            text = "".join(letters)
            match = re.match(pattern, text)
            if match is not None and match.end() == length:
                found.add(text.encode())
    return found


@pytest.mark.parametrize(
    ("pattern", "alphabet", "max_length"),
    [
        ('".*?"', '"a\n', 5),
        ("a.*?b", "ab", 6),
        ("a.*?bb", "ab", 7),
        ("a.*?bab", "ab", 8),
        ("a.+?b", "ab", 6),
        ("a.{2,3}?b", "ab", 7),
        ("a.??b", "ab", 5),
        ("a[ab]{2,}?ba", "ab", 7),
        ("#.*?\n\\s*", "# \n", 5),
        ("a.*?b(cc|c)?", "abc", 6),
        ("a.*?bc?a*", "abc", 6),
        (r"/\*(.|\n)*?\*/", "/*\n", 7),
        ("(a.*?b|b.*?a)", "ab", 6),
        ("(?:a.*?c|b+)", "abc", 5),
        ("a(?P<n>b.*?c)", "abc", 6),
        ("(?i)a.*?B", "abB", 4),
        ("ab*?", "ab", 4),
        ("ab{2}?", "ab", 5),
        ("ab+?c?", "abc", 5),
        ("x*a.*?b", "xab", 5),
        (r"a\*?b", "ab*", 4),
        (r"a[*?]?b", "ab*?", 4),
        (r"[]*?]*?a", "]*?a", 4),
        ("a{}?b", "ab{}", 5),
        ("(?#c*?)a.*?b", "ab", 5),
    ],
)
def test_lazy_terminals_are_what_python_takes(pattern: str, alphabet: str, max_length: int) -> None:
    """A terminal with a lazy repetition has exactly the texts that the match consumes completely."""
    escaped = pattern.replace("/", r"\/").replace("\n", r"\n")
    grammar = lark(f"start: /{escaped}/")
    assert language(grammar, max_length, alphabet.encode()) == taken_whole(pattern, alphabet, max_length)


def test_laziness_reaches_over_the_parts_of_a_terminal() -> None:
    """The end of the repetition may be in another string, regexp or terminal."""
    for text in ('T: "a" /.*?/ "b"', 'T: A B\nA: "a" /.*?/\nB: "b"', 'T: ("a" /.*?/ "b")'):
        grammar = lark(f"start: T\n{text}")
        assert language(grammar, 5, b"ab") == taken_whole("a.*?b", "ab", 5)


def test_laziness_after_a_guard() -> None:
    """A terminal may look at the text after one of its parts before a lazy repetition, and the part may be left out."""
    for count, regexp in (("", ""), ("?", "?"), ("~2", "{2}")):
        grammar = lark(f"start: T\nT: /a(?!b)/{count} /a*?b/")
        assert language(grammar, 5, b"ab") == taken_whole(f"(?:a(?!b)){regexp}a*?b", "ab", 5)


def test_the_end_of_a_line_ends_a_comment_in_verbose_regexps() -> None:
    """A quantifier inside a comment is not a quantifier."""
    grammar = lark("start: /a # *?\n .*?b/x")
    assert language(grammar, 5, b"ab") == taken_whole("a.*?b", "ab", 5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("T: /(ab)*?c/", "it repeats more than a single character"),
        ("T: /a*?b*c/", "the part after it has no fixed length"),
        ("T: /a*?b.*?c/", "the part after it has no fixed length"),
        ("T: /(a*?b)+/", "it is in a repeated group"),
        ('T: ("a" /.*?/ "b")+', "it is in a repeated group"),
        ("T: /(a*?b|c)d/", "text follows its group"),
        ("T: /a*?b/ /a(?!b)/+", "a part after it looks at the text that follows"),
        ('T: ("x" | /c*?/) /a(?!b)/', "a part after it looks at the text that follows"),
        ("T: /(?i:a*?b)/", "it is in a group with flags or a look-around"),
        ("T: /" + "(a*?b|" * 40 + "c" + ")" * 40 + "/", "it is nested too deeply in groups"),
        ("T: /" + "a*?b" * 1001 + "/", "there are more than 1000 of them in one regexp"),
    ],
)
def test_other_lazy_repetitions_are_refused(text: str, reason: str) -> None:
    """What would need more than one character of look-ahead is refused with the reason."""
    with pytest.raises(UnsupportedFeature) as caught:
        lark(f"start: T\n{text}")
    assert caught.value.feature == "lazy repetition"
    assert reason in caught.value.problem
