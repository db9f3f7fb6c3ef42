"""Lark grammars with ``lexer="contextual"`` against Lark's LALR parser with that lexer, string by string."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import lark as peer
import pytest

from structgen.engine import Matcher, Vocabulary, compile
from structgen.errors import LimitExceeded, StructgenError, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.lark import lark, load
from structgen.frontends.lark.contextual.lexer_automaton import DEAD, LexerAutomaton, Scanner
from structgen.frontends.lark.contextual.pattern import LetterAlphabet, PatternRefusal, classes_of, read_pattern
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.testing.small_scope import language

GRAMMARS = Path(__file__).resolve().parents[2] / "grammars"
FOLDERS = sorted(path.parent for path in GRAMMARS.glob("*/grammar.lark") if (path.parent / "cases.toml").is_file())
BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [b"<eos>"], eos=[256])


@pytest.fixture(autouse=True)
def _unchecked_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lark without its search for overlapping terminals, which may take minutes, warns only, and changes no answer."""
    monkeypatch.setattr("lark.lexer.has_interegular", False)


def parser_of(text: str, **options: object) -> peer.Lark:
    return peer.Lark(text, parser="lalr", lexer="contextual", **options)


def lark_accepts(parser: peer.Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except peer.exceptions.LarkError:
        return False
    return True


def texts(alphabet: str, max_length: int) -> Iterator[str]:
    for length in range(max_length + 1):
        yield from map("".join, product(alphabet, repeat=length))


def members(grammar: Grammar, alphabet: str, max_length: int) -> set[str]:
    """The strings over an alphabet up to a length that the engine accepts."""
    found: set[str] = set()
    matcher = compile(grammar, BYTES).matcher()

    def walk(prefix: str) -> None:
        if matcher.is_accepting:
            found.add(prefix)
        if len(prefix) < max_length:
            for character in alphabet:
                taken = take(matcher, character)
                if taken == len(character.encode()):
                    walk(prefix + character)
                matcher.rollback(taken)

    walk("")
    return found


def take(matcher: Matcher, text: str) -> int:
    """Give the bytes of ``text`` until one is refused; return how many were accepted."""
    for count, byte in enumerate(text.encode()):
        if not matcher.accept(byte):
            return count
    return len(text.encode())


def assert_same(text: str, alphabet: str, max_length: int) -> int:
    """Compare all strings up to a length; return how many are accepted."""
    parser = parser_of(text)
    expected = {word for word in texts(alphabet, max_length) if lark_accepts(parser, word)}
    try:
        grammar = lark(text, lexer="contextual")
    except UnsatisfiableGrammar:
        assert not expected, text
        return 0
    assert members(grammar, alphabet, max_length) == expected, text
    return len(expected)


STRING = r'S: /"([^"\\]|\\.)*"/'
SMALL = [
    # keywords and names
    ('start: "if" N | N\nN: /[a-z]+/\n%ignore " "', "ifx ", 5),
    ('start: ("if" | N)+\nN: /[a-z]+/\n%ignore " "', "if ", 6),
    ('start: "if" N\nN: /[a-z]+/', "ifx", 6),
    ('start: N "end"\nN: /[a-z]+/', "endx", 5),
    ('start: "not"? N\nN: /[a-z]+/\n%ignore " "', "not ", 5),
    ('start: s*\ns: "if" N ":" | N "=" N\nN: /[if]+/\n%ignore " "', "if=: ", 5),
    ('start: ("i"i | N)+ "."\nN: /[a-z]+/i\n%ignore " "', "iIx. ", 5),
    ('start: IF N | N+\nIF: "if"i\nN: /[a-z]+/i\n%ignore " "', "ifI ", 5),
    ('start: (IF | N)+\nIF: "if"i\nN: /[a-z]+/\n%ignore " "', "ifI ", 5),
    ('start: IF N | N+ "."\nIF.2: "if"\nN: /[a-z]+/\n%ignore " "', "ifx. ", 5),
    ('start: IF N | N+ "."\nIF.-1: "if"\nN: /[a-z]+/\n%ignore " "', "ifx. ", 5),
    ('start: "a" "b" | N N\nN: /[ab]/', "ab", 5),
    ('start: ("in" | "int" | N)+\nN: /[a-z]+/\n%ignore " "', "int ", 6),
    ('start: ("let" N "=")? e\ne: N | "(" start ")"\nN: /[let]+/\n%ignore " "', "let=( ", 4),
    # keywords that are expected in some states only
    ('start: "a" x | "b" y\nx: "as" N\ny: N "as"?\nN: /[as]+/\n%ignore " "', "abs ", 6),
    ('start: (k v)*\nk: "k"\nv: N\nN: /[kv]+/\n%ignore " "', "kv ", 6),
    ('start: "(" N ")" | "k" "."\nN: /[k]+/', "(k).", 5),
    # numbers
    ('start: (I | F | ".")+\nI: /[0-9]+/\nF: /[0-9]+\\.[0-9]+/', "1.", 8),
    ('start: I ".." I | F\nI: /[0-9]+/\nF: /[0-9]+\\.[0-9]*/', "1.", 7),
    ("start: (I | F | N)+\nI: /[0-9]+/\nF: /[0-9]+e[0-9]+/\nN: /[a-z]+/", "1e", 8),
    ('start: n ("-" n)*\nn: I\nI: /-?[0-9]+/', "1-", 7),
    ('start: n ("-"n)*\nn: I\nI: /-?[0-9]+/\n%ignore " "', "1- ", 6),
    ('start: (I | F)+\n%import common.INT -> I\n%import common.FLOAT -> F\n%ignore " "', "1.e ", 5),
    ('start: N+\n%import common.SIGNED_NUMBER -> N\n%ignore " "', "1+.e", 5),
    # operators
    ('start: ("<" | "<=" | "<<" | "=")+', "<=", 7),
    ('start: e\ne: e ("+" | "++") "x" | "x"', "x+", 8),
    ('start: ("x" | "-" | "->" | ">")+', "x->", 6),
    ('start: "a" ("*" | "**") "a"', "a*", 6),
    # strings
    (f"start: S*\n{STRING}", '"\\a', 6),
    ('start: S*\nS: /"([^"]|"")*"/', '"a', 8),
    ('start: S ("," S)*\n%import common.ESCAPED_STRING -> S\n%ignore " "', '"\\a,', 6),
    (f'start: (S | Q)+\n{STRING}\nQ: "\\""', '"\\a', 6),
    ('start: (S | L)+\nS: /"[^"]*"/\nL: /"""(.|\\n)*?"""/', '"a', 9),
    ("start: (S | T)+\nS: /'.*?'/\nT: /[a']/", "'ab", 6),
    # comments and other ignored text
    ('start: X ("/" X)*\nX: "x"\n%ignore /\\/\\*(.|\\n)*?\\*\\//', "x/*", 8),
    ('start: (N | "/")*\nN: /[a-z]+/\n%ignore /\\/\\/[^\\n]*/\n%ignore /\\s+/', "a/\n ", 5),
    ('start: (N | "#")*\nN: /[a-z]+/\n%ignore /#[^\\n]*/', "a#\n", 6),
    ('start: "x" "y"\n%ignore /z+/\n%ignore "zz"', "xyz", 6),
    ('start: "x"+ "zz"\n%ignore "z"', "xz", 7),
    ('start: "a" NL "b"\nNL: /\\n/+\n%ignore /[ \\n]/', "ab \n", 5),
    ('start: "z"? T\nT: /[^x]/\n%ignore "z"', "xyz", 5),
    ('start: a* \na: "b"\n%ignore /c+/\n%ignore /cb/', "bc", 8),
    ('start: \n%ignore " "', " x", 4),
    ('start: "x" | \n%ignore / +/', " x", 5),
    # priorities
    ('start: (A | B)+\nA.2: "a"\nB: /a+b/', "ab", 7),
    ('start: (A | B)+\nA: "a"\nB.2: /a+b/', "ab", 7),
    ("start: (A | B | C)+\nA.1: /a/\nB.2: /ab/\nC.3: /abb/", "ab", 7),
    ('start: x | y\nx.2: "a"\ny.1: "a"', "a", 3),
    ("start: (A | B)+\nA: /a{1,3}/\nB: /a{2}b/", "ab", 7),
    # which match re finds
    ('start: (A | B)+ "c"\nA: /a|ab/\nB: "b"', "abc", 6),
    ("start: /(a|ab)(c|bcd)(d*)/", "abcd", 6),
    ('start: A "b"\nA: /a.*?b/', "ab", 7),
    ('start: A "b"+\nA: /a.+?(b|bb)/', "ab", 7),
    ("start: A B?\nA: /(a|ab)??b/\nB: /a+/", "ab", 7),
    ("start: A+\nA: /(|a)*b/", "ab", 7),
    ('start: A+ "b"\nA: /(a?){2,3}?b/', "ab", 7),
    # what follows a character
    ('start: (W | "!")+\nW: /a+\\b/', "a!", 7),
    ("start: (W | V)+\nW: /a+(?=b)/\nV: /[ab]/", "ab", 7),
    ("start: (W | V)+\nW: /a+(?!b)/\nV: /[ab]/", "ab", 7),
    ("start: (W | V)+\nW: /a+(?<!a)b?/\nV: /[ab]/", "ab", 7),
    ('start: W+\nW: /a+\\Z/ | "b"', "ab", 6),
    ("start: (W | NL)+\nW: /a+$/m\nNL: /[a\\n]/", "a\n", 6),
    # conflicts that Lark resolves
    ('start: s\ns: "i" s | "i" s "e" s | "x"', "iex", 7),
    ('start: e\ne: e "+" e | e "*" e | "x"', "x+*", 5),
    ('start: a "x"\na: "x"*', "x", 6),
    ('start: a b\na: "x"?\nb: "x"? "y"', "xy", 5),
    ('start: l\nl: l "," l | "x" | ', "x,", 6),
    ('start: x "a" | y "b"\nx.2: "c"\ny.1: "c"', "abc", 4),
    ('start: x | y "b"\nx.2: "c"\ny.1: "c"', "bc", 4),
    # operators of rules, templates, imports
    ('start: ("x" "y"?)~2..3 ["z"]', "xyz", 7),
    ('start: "x"~3 | "y"+ | ("z" "x")*', "xyz", 6),
    ('start: p{"x", "y"} p{"y", "x"}\np{a, b}: a b | b', "xy", 5),
    ('start: l{N} | "(" l{"b"} ")"\nl{x}: x ("," x)*\nN: /a+/', "ab,()", 4),
    ('start: "a" start "b" | \n%ignore /c+/', "abc", 6),
    ('start: [a] [b] "."\na: "x"+\nb: "x" "y"', "xy.", 6),
    ("start: W (S W)*\n%import common.WORD -> W\n%import common.WS -> S", "ab \n", 5),
    ('start: A B\nA: "é" | /[à-ï]+x/\nB: /[^a]/', "éàx", 5),
]


@pytest.mark.parametrize(("text", "alphabet", "max_length"), SMALL)
def test_small_grammars(text: str, alphabet: str, max_length: int) -> None:
    """Lark accepts the same strings, among all strings up to a length."""
    assert_same(text, alphabet, max_length)


def test_small_grammars_have_members() -> None:
    """The comparison above is not vacuous: few grammars are empty."""
    empty = 0
    for text, _, _ in SMALL:
        try:
            lark(text, lexer="contextual")
        except UnsatisfiableGrammar:
            empty += 1
    assert empty < 8


@pytest.mark.parametrize("index", range(0, len(SMALL), 5))
def test_small_grammars_by_set_algebra(index: int) -> None:
    """Set algebra on the terms, without the engine, gives the same strings."""
    text, alphabet, max_length = SMALL[index]
    alphabet = "".join(character for character in alphabet if character.isascii())
    length = min(max_length, 5)
    parser = parser_of(text)
    expected = {word.encode() for word in texts(alphabet, length) if lark_accepts(parser, word)}
    if expected:
        assert language(lark(text, lexer="contextual"), length, alphabet.encode()) == expected


def random_regexp(rng: random.Random, depth: int = 2) -> str:
    kind = rng.randrange(10 if depth else 3)
    if kind < 3:
        return rng.choice(["x", "y", "z", "[xy]", "[^x]", "z", ".", "[yz]"])
    if kind < 5:
        return "".join(random_regexp(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    if kind < 7:
        return "(" + "|".join(random_regexp(rng, depth - 1) for _ in range(rng.randint(2, 3))) + ")"
    if kind == 9 and rng.random() < 0.3:
        return rng.choice(["(?=x)", "(?!y)", "(?<=x)", "(?<!y)", r"\b", "", r"\Z"])
    counts = ["*", "+", "?", "{1,2}", "*?", "+?", "??", "{0,2}", "{2}", "{1,3}?"]
    return "(" + random_regexp(rng, depth - 1) + ")" + rng.choice(counts)


def longest_by_machine(machine: LexerAutomaton, start: int, text: str) -> int | None:
    """The length of the machine's match, by its own tables."""
    alphabet = machine.alphabet
    letters = [alphabet.mask(((ord(one), ord(one)),)) for one in text]
    state, found = start, None
    for position in range(len(text) + 1):
        following = letters[position] if position < len(text) else alphabet.end
        if any(mask & following for _, _, mask in machine.ends[state]):
            found = position
        if position == len(text):
            break
        targets = machine.following(state).items()
        state = next((target for mask, target in targets if mask & following), DEAD)
        if state == DEAD:
            break
    return found


@pytest.mark.parametrize("seed", range(4))
def test_machine_finds_the_match_of_re(seed: int) -> None:
    """The ordered automaton finds the match that ``re`` finds, for regexps that do not match the empty string."""
    rng = random.Random(seed)
    compared = 0
    while compared < 25:
        pattern = random_regexp(rng, 3)
        compiled = re.compile(pattern)
        try:
            tree = read_pattern(pattern)
            alphabet = LetterAlphabet([*classes_of(tree), *(((ord(one), ord(one)),) for one in "xyz")])
            machine = LexerAutomaton({"A": tree}, alphabet, Limits(), "test")
            start = machine.start(Scanner(("A",), ()))
        except PatternRefusal:
            continue
        compared += 1
        for text in texts("xyz", 4):
            found = compiled.match(text)
            assert longest_by_machine(machine, start, text) == (None if found is None else found.end()), (pattern, text)


def random_grammar(rng: random.Random) -> str:
    """A grammar of three rules over a few terminals that overlap."""
    names = [f"T{index}" for index in range(rng.randint(2, 4))]

    def expression(depth: int) -> str:
        kind = rng.randrange(8 if depth else 4)
        if kind < 2:
            return rng.choice(names)
        if kind < 3:
            return rng.choice(["a", "b", "start"])
        if kind < 4:
            return rng.choice(['"x"', '"y"', '"z"', '"xy"', '"xyz"'])
        if kind < 6:
            return " ".join(expression(depth - 1) for _ in range(rng.randint(1, 3)))
        if kind < 7:
            return "(" + " | ".join(expression(depth - 1) for _ in range(rng.randint(2, 3))) + ")"
        return "(" + expression(depth - 1) + ")" + rng.choice("*+?")

    last = rng.choice(["", " | " + expression(2), " | "])
    lines = [f"start: {expression(3)}", f"a: {expression(2)}{last}", f"b: {expression(2)} | {expression(2)}"]
    for name in names:
        spelled = rng.choice(
            [f"/{random_regexp(rng)}/", f"/{random_regexp(rng, 1)}/", rng.choice(['"x"', '"yz"', '"xyx"i'])]
        )
        lines.append(f"{name}{rng.choice(['', '', '', '.2', '.1'])}: {spelled}")
    if rng.random() < 0.4:
        lines.append("%ignore " + rng.choice(['"z"', "/z+/", "/zx*/", "T0", "/zz?/"]))
    return "\n".join(lines) + "\n"


def compare_random(seed: int, wanted: int, max_length: int) -> int:
    """Compare ``count`` random grammars that Lark accepts; return how many strings were accepted."""
    rng = random.Random(seed)
    compared = found = 0
    while compared < wanted:
        text = random_grammar(rng)
        try:
            parser_of(text)
        except (peer.exceptions.LarkError, re.error):
            continue
        try:
            found += assert_same(text, "xyz", max_length)
        except UnsupportedFeature:
            continue
        compared += 1
    return found


def test_random_grammars() -> None:
    """Lark accepts the same strings for random grammars of all shapes."""
    assert compare_random(2024, 40, 5) > 200


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_many_random_grammars(seed: int) -> None:
    """The same holds for many more grammars."""
    assert compare_random(seed, 300, 6) > 2_000


def cases_of(folder: Path) -> tuple[dict[str, object], list[str]]:
    """The options of a library grammar and its documents, good and bad."""
    with (folder / "cases.toml").open("rb") as file:
        cases = tomllib.load(file)
    documents = [*cases["accept"], *(text for text, _ in cases.get("reject", []))]
    return {name: cases[name] for name in ("start",) if name in cases}, documents


def mutations(rng: random.Random, document: str, count: int) -> Iterator[str]:
    """The document, and others that differ from it in a few places."""
    yield document
    for _ in range(count):
        text = document
        for _ in range(rng.randint(1, 2)):
            place = rng.randrange(len(text) + 1)
            piece = rng.choice(["", " ", "a", "1", document[place : place + 3], rng.choice(document or " ")])
            text = text[:place] + piece + text[place + rng.randrange(3) :]
        yield text


def compare_documents(folder: Path, per_document: int, most: int) -> tuple[int, int]:
    """Compare documents and mutations of them; return how many were accepted and how many refused."""
    options, documents = cases_of(folder)
    text = (folder / "grammar.lark").read_text("utf-8")
    try:
        parser = parser_of(text, maybe_placeholders=False, **options)
    except peer.exceptions.LarkError:
        with pytest.raises(StructgenError):
            load(folder / "grammar.lark", lexer="contextual", **options)  # type: ignore[arg-type]
        return 0, 1
    grammar = load(folder / "grammar.lark", lexer="contextual", **options)  # type: ignore[arg-type]
    constraint = compile(grammar, BYTES)
    rng = random.Random(folder.name)
    accepted = refused = 0
    for document in documents[:most]:
        for mutant in mutations(rng, document, per_document):
            matcher = constraint.matcher()
            is_member = take(matcher, mutant) == len(mutant.encode()) and matcher.is_accepting
            assert is_member == lark_accepts(parser, mutant), mutant
            accepted += is_member
            refused += not is_member
    return accepted, refused


@pytest.mark.parametrize("name", ["arithmetic", "cpp", "csv", "json", "sql_select"])
def test_library_grammars(name: str) -> None:
    """The library's LALR(1) grammars agree with Lark on their documents and on mutations of them."""
    accepted, refused = compare_documents(GRAMMARS / name, 6, 12)
    assert accepted + refused > 0


@pytest.mark.nightly
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_library_grammars_at_length(folder: Path) -> None:
    """The same holds for all of them, with all documents and many mutations."""
    with (folder / "cases.toml").open("rb") as file:
        if "indentation" in tomllib.load(file) or "_INDENT" in (folder / "grammar.lark").read_text("utf-8"):
            pytest.skip("blocks by indentation are not read by the contextual lexer")
    try:
        compare_documents(folder, 40, 200)
    except LimitExceeded as error:
        pytest.skip(f"too large for the default limits: {error}")
