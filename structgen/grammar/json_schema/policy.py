"""The choices that a JSON Schema leaves open: which of the texts of a valid value may be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

__all__ = ["JsonPolicy", "Whitespace"]

Whitespace: TypeAlias = Literal["flexible", "compact", "single"]


@dataclass(frozen=True, slots=True)
class JsonPolicy:
    """Which spellings of a valid JSON value belong to the language.

    Attributes:
        whitespace: what may stand around the structural characters ``{ } [ ] , :``.
            ``"flexible"``: at each place at most one space, then at most one line break followed by at most
            ``indent`` spaces and tabs; this holds what ``json.dumps`` writes with its defaults, compactly, and
            with any usual ``indent=``.
            ``"compact"``: nothing.
            ``"single"``: ``", "`` and ``": "``, as ``json.dumps`` writes by default.
        indent: the most spaces and tabs after a line break, so that a run of whitespace always ends.
        digits: the most digits of the integer part and of the fraction of a number, so that a number always ends;
            a bound or a constant that needs more digits gets them.

    >>> JsonPolicy(whitespace="compact").indent
    256
    """

    whitespace: Whitespace = "flexible"
    indent: int = 256
    digits: int = 40

    def __post_init__(self) -> None:
        if self.whitespace not in get_args(Whitespace):
            raise ValueError(
                f"JsonPolicy: whitespace is {self.whitespace!r}; give one of {', '.join(get_args(Whitespace))}"
            )
        for name, least, most in (("indent", 0, 10_000), ("digits", 1, 200)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(f"JsonPolicy: {name} is {value!r}; give an integer from {least} to {most}")

    def lines(self) -> tuple[tuple[str, str], ...]:
        """State each choice as (name, value), for the report."""
        around = {
            "flexible": f"at most one space, one line break and {self.indent} spaces or tabs around '{{}}[],:'",
            "compact": "none",
            "single": "', ' between members, ': ' after a name, none elsewhere",
        }
        return (
            ("whitespace", f"{self.whitespace}: {around[self.whitespace]}; none before or after the document"),
            ("property order", "declared; undeclared and pattern names anywhere between"),
            ("repeated names", "never for a declared name; not prevented for undeclared ones"),
            ("escapes", "names and constants as json.dumps(ensure_ascii=False) writes them; free strings in any way"),
            ("integers", f"-?(0|[1-9][0-9]*) with at most {self.digits} digits"),
            (
                "numbers",
                f"any RFC 8259 form with at most {self.digits} digits on each side of the point that double precision "
                "can hold; exponents of three digits, and any under 'minimum' and 'maximum', only after one digit that "
                "is not zero before the point; none under 'multipleOf'",
            ),
            ("constants", "as the schema spells them; 1.0 also as 1"),
            ("format", "asserted"),
            ("nullable", "'nullable': true adds null to 'type', as in OpenAPI 3.0"),
        )
