"""Programs and molecules with holes, filled by models without knowledge, and judged by independent parsers.

A model without weights is the hardest test of a constraint, since it never follows the grammar by itself. A compiler
judges C++, an independent parser judges SMILES; neither the grammar nor the engine does.
"""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from structgen.decode import Multinomial
from structgen.decode.diffusion.commit_policy import Static
from structgen.decode.diffusion.posterior import Dingo, Posterior
from structgen.engine import Constraint, Vocabulary, compile
from structgen.frontends.lark import load
from structgen.methods.infilling import Hole, hole, infill
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion, NGramDiffusion

GRAMMARS = Path(__file__).resolve().parents[4] / "grammars"

PROGRAMS = [
    "int f(int p) { return p * 2 + 1; }",
    "int h() { int a = 0; for (int i = 0; i < 9; ++i) { a += i; } return a; }",
    "int g(int p, int q) { if (p < q) { return p; } else { return q; } }",
    "int f(int p) { while (p > 0) { p -= 1; } return p; }",
    "int f(int p) { int a = 1; while (a < p) { a *= 2; } return a; }",
    "int g(int p, int q) { while (q != 0) { int a = p % q; p = q; q = a; } return p; }",
    "int h() { std::vector<int> v; v.push_back(1); return v[0] + v.size(); }",
    "int h() { std::vector<int> v(3, 0); ++v[1]; return v[1]; }",
    'int h() { std::string s = std::string("ab"); s += t; return s.size(); }',
    "int f(int p) { return p; } int h() { return f(3); }",
    "int f(int p) { if (p <= 1) { return 1; } return p * f(p - 1); }",
    "int g(int p, int q) { return (p + q) * (p - q) / 2; }",
    "int f(int p) { int a = 0; int b = 1; for (int i = 0; i < p; ++i) { int c = a + b; a = b; b = c; } return a; }",
    "int h() { if (!(a && b) || c == -1) { return 0; } return 1; }",
    "int f(int p) { for (int i = 0; i < p; ++i) { for (int j = 0; j < i; ++j) { n += i * j; } } return n; }",
    'int h() { s = std::string("x = \\"y\\";\\n") + t; return s[2]; }',
    "int f(int p) { { int a = 2; p = a; } return p; }",
    "int g(int p, int q) { if (p > q) { p = q; } else { if (p == q) { q += 1; } } return p + q; }",
    "int h() { return g(f(1), f(2) % 3) >= h(); }",
    "int f(int p) { v[p] = v[p - 1] + v[p - 2]; return v[p]; }",
]

MOLECULES = [
    "CCO", "CC(=O)O", "c1ccccc1", "CC(C)Cc1ccc(C(C)C(=O)O)cc1", "CC(=O)Oc1ccccc1C(=O)O", "c1ccc2ccccc2c1", "C1CCCCC1",
    "CC(=O)Nc1ccc(O)cc1", "NCC(=O)O", "N[C@@H](C)C(=O)O", "F/C=C/F", "[Na+].[Cl-]", "[NH4+].[OH-]", "OCC(O)CO",
    "CC(C)(C)O", "ClC(Cl)Cl", "C=CC=C", "C#N", "O=C=O", "c1cc[nH]c1", "c1ccncc1", "CCN(CC)CC", "CS(C)=O", "OC1CCCCC1O",
    "CC1=CC=CC=C1", "BrCCBr", "C[Si](C)(C)C", "[13CH4]", "CC(N)C(=O)NCC(=O)O", "Oc1ccc(C2CC2)cc1",
]  # fmt: skip

CODE = (
    *(
        "int f(int p) {",
        "int g(int p, int q) {",
        "int h() {",
        " return ",
        "if (",
        "} else {",
        "while (",
        "for (int i = 0; i < ",
    ),
    *(
        "; ++i) {",
        " = ",
        " += ",
        " + ",
        " - ",
        " * ",
        " % ",
        " == ",
        " < ",
        " && ",
        " || ",
        "std::vector<int> v",
        "std::string",
    ),
    *(
        'std::string("',
        '")',
        "v.push_back(",
        ".size()",
        "int a = ",
        "int b = ",
        "; }",
        ") {",
        " }",
        "f(",
        "g(",
        "h()",
        ");",
    ),
    *("return", "int ", "p)", "(p", "v[", "};", "} }", "a;", "; ", "1)", "++v", "; i < p"),
)
ATOMS = (
    "Cl",
    "Br",
    "c1ccccc1",
    "(=O)",
    "C(",
    ")C",
    "C=C",
    "[C@@H]",
    "[nH]",
    "N(",
    "CC",
    "1C",
    "c1",
    "(C)",
    "=C",
    "ccc",
    "O)",
    "[N",
    "+]",
)

DECLARATIONS = (
    "int a, b, c, i, j, n, p, q; std::string s, t; std::vector<int> v; int f(int p); int g(int p, int q); int h();"
)


@dataclass(frozen=True)
class TextSet:
    """Texts of one language, and the models' material for them."""

    texts: list[str]
    constraint: Constraint

    @classmethod
    def of(cls, name: str, texts: list[str], pieces: tuple[str, ...]) -> TextSet:
        letters = [bytes([byte]) for byte in (10, *range(32, 127))]
        tokens = [b"", *letters, *(piece.encode() for piece in pieces if len(piece) > 1), b""]
        vocabulary = Vocabulary(tokens, eos=[0], special={len(tokens) - 1: "<mask>"})
        constraint = compile(load(GRAMMARS / name / "grammar.lark"), vocabulary)
        for text in texts:
            matcher = constraint.matcher()
            assert matcher.accept_bytes(text.encode()) == len(text), text
            assert matcher.is_accepting, text
        return cls(texts, constraint)

    def cut(self, number: int, most: int) -> list[Any]:
        """A text with one to three holes; each may be filled with up to ``most`` tokens, or the number that it had."""
        text = self.texts[number % len(self.texts)]
        rng = random.Random(number)
        regions = min(1 + number % 3, len(text) // 3)
        places = sorted(rng.sample(range(len(text) + 1), 2 * regions))
        parts: list[Any] = []
        at = 0
        for start, stop in zip(places[::2], places[1::2], strict=True):
            end = min(stop, start + most)
            parts += [text[at:start], hole(max(end - start, most // 2))]
            at = end
        return [part for part in (*parts, text[at:]) if isinstance(part, Hole) or part]


@pytest.fixture(scope="module")
def code() -> TextSet:
    return TextSet.of("cpp", PROGRAMS, CODE)


@pytest.fixture(scope="module")
def molecules() -> TextSet:
    return TextSet.of("smiles", MOLECULES, ATOMS)


def filled_from_the_left(given: TextSet, most: int) -> list[str]:
    """Every text of a set, filled by different models, in every order of the holes."""
    vocabulary = given.constraint.vocabulary
    texts = []
    for number in range(len(given.texts)):
        parts = given.cut(number, most)
        order: Any = "backward" if number % 5 == 4 and len(parts) < 5 else "forward"
        sampler = Multinomial(temperature=0.5 + number % 3)
        result = infill(
            HashModel(vocabulary, seed=number), parts, given.constraint, sampler=sampler, seed=number, order=order
        )
        assert keeps(result.text, parts)
        texts.append(result.text)
    return texts


def filled_on_a_canvas(given: TextSet, most: int) -> list[str]:
    """The same by diffusion models: a random one, and one with counts of the texts."""
    vocabulary = given.constraint.vocabulary
    counted = NGramDiffusion.fit([vocabulary.tokenize(text) for text in given.texts], vocabulary, order=2)
    texts = []
    for number in range(len(given.texts)):
        parts = given.cut(number, most)
        model = counted if number % 2 else HashDiffusion(vocabulary, seed=number)
        sampler = Dingo() if number % 4 < 2 else Posterior()
        policy = Static(per_step=1 + number % 4)
        result = infill(model, parts, given.constraint, sampler=sampler, seed=number, lengths="longest", policy=policy)
        assert keeps(result.text, parts)
        texts.append(result.text)
    return texts


def keeps(text: str, parts: list[Any]) -> bool:
    """Whether the fixed parts are there in order, the outer ones at the ends."""
    at = 0
    for part in parts:
        if isinstance(part, str):
            at = text.find(part, at) + len(part)
            if at < len(part):
                return False
    begins = text.startswith(parts[0]) if isinstance(parts[0], str) else True
    return begins and (text.endswith(parts[-1]) if isinstance(parts[-1], str) else True)


def compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        pytest.skip("there is no g++ to judge programs with")
    return found


def problems_of_code(texts: list[str], folder: Path) -> list[str]:
    """The compiler's errors for several programs, each in its own namespace with its declarations."""
    source = folder / "programs.cpp"
    spaces = "\n".join(f"namespace n{number} {{ {DECLARATIONS}\n{text}\n}}" for number, text in enumerate(texts))
    source.write_text(f"#include <string>\n#include <vector>\n{spaces}\n")
    command = [compiler(), "-std=c++17", "-fsyntax-only", "-w", "-fmax-errors=0", str(source)]
    judged = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return [line for line in judged.stderr.splitlines() if "error" in line] or ["?"] * judged.returncode


def problem_of_molecule(text: str) -> str:
    """An independent parser's error about the syntax of a molecule, without chemistry."""
    import partialsmiles

    # It may be told to accept what OpenSMILES allows: a branch at the end of a chain.
    trailing_branches = 4
    try:
        partialsmiles.ParseSmiles(text, partial=False, rulesToIgnore=trailing_branches)
    except partialsmiles.SMILESSyntaxError as error:
        return str(error)
    except (partialsmiles.ValenceError, partialsmiles.KekulizationFailure):
        pass
    return ""


def needs_partialsmiles() -> None:
    if importlib.util.find_spec("partialsmiles") is None:
        pytest.skip("there is no partialsmiles to judge molecules with: pip install partialsmiles")


def test_the_judges_find_faults(tmp_path: Path) -> None:
    """They refuse wrong texts, so that their verdicts mean something."""
    wrong = [
        "int f(int p) { return p }",
        "int h() { a--1; }",
        "int h() { int a = 1; int a = 2; }",
        "int h() { k = 1; }",
    ]
    for text in wrong:
        assert problems_of_code([PROGRAMS[0], text], tmp_path), text
    assert problems_of_code(PROGRAMS, tmp_path) == []
    needs_partialsmiles()
    assert all(map(problem_of_molecule, ["c1ccccc", "C1CC(", "C==C", "CX", "C11", "[C", "C..C", "C()"]))
    assert not any(map(problem_of_molecule, MOLECULES))


@pytest.mark.exhaustive
def test_programs_from_the_left(code: TextSet, tmp_path: Path) -> None:
    """The compiler accepts all fillings of twenty programs with one to three holes."""
    assert problems_of_code(filled_from_the_left(code, most=10), tmp_path) == []


@pytest.mark.nightly
def test_programs_on_a_canvas(code: TextSet, tmp_path: Path) -> None:
    """The same holds on a canvas."""
    assert problems_of_code(filled_on_a_canvas(code, most=6), tmp_path) == []


def test_molecules_from_the_left(molecules: TextSet) -> None:
    """All fillings of thirty molecules with one to three holes parse."""
    needs_partialsmiles()
    assert [problem for problem in map(problem_of_molecule, filled_from_the_left(molecules, most=6)) if problem] == []


def test_molecules_on_a_canvas(molecules: TextSet) -> None:
    """The same holds on a canvas."""
    needs_partialsmiles()
    assert [problem for problem in map(problem_of_molecule, filled_on_a_canvas(molecules, most=6)) if problem] == []
