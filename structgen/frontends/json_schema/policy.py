"""The choices that a JSON Schema leaves open: how a valid value may be written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from structgen.errors import GrammarError

if TYPE_CHECKING:
    from structgen.grammar.nodes import Grammar

__all__ = ["Additional", "Formats", "Forms", "JsonPolicy", "Order", "Repeated", "Required", "Whitespace", "spacing"]

Whitespace: TypeAlias = Literal["flexible", "compact", "single", "runs", "any", "indented"]
Order: TypeAlias = Literal["declared", "any"]
Forms: TypeAlias = Literal["canonical", "all"]
Formats: TypeAlias = Literal["asserted", "annotation"]
Additional: TypeAlias = Literal["written", "forbidden"]
Required: TypeAlias = Literal["written", "all"]
Repeated: TypeAlias = Literal["allowed", "forbidden"]


_MANY: Final = 1_000_000
_SPACES: Final = " \t\n\r"
_MAX_SPACES: Final = 256
_MAX_INDENT: Final = 10_000
_STEP: Final = 2
_DEEPEST: Final = 32
_ORDERS: Final[dict[Order, str]] = {"declared": "declared; undeclared and pattern names anywhere between", "any": "any"}


@dataclass(frozen=True, slots=True)
class JsonPolicy:
    r"""Which spellings of a valid JSON value the grammar accepts.

    Attributes:
        whitespace: the whitespace around the structural characters ``{ } [ ] , :``.
            ``"single"``: ``", "`` and ``": "``, as ``json.dumps`` writes by default.
            ``"compact"``: none.
            ``"flexible"``: at most one space, then at most one line break followed by at most ``indent`` spaces and
            tabs; this covers ``json.dumps`` with its defaults, compact, and with any usual ``indent=``.
            ``"runs"``: at most ``indent`` of the four characters of RFC 8259 in any order.
            ``"any"``: any number of them, for checking what others have written.
            ``"indented"``: exactly what ``json.dumps`` writes with ``indent=``.  Its text depends on the depth, so
            ``max_depth`` is 32 there where it is not given.
        indent: the maximum number of spaces and tabs after a line break, or of characters in a run, so that whitespace
            always ends; under ``"indented"`` the spaces of a level, or a text such as ``"\t"``, as for ``json.dumps``.
            ``None``: 256, and 2 under ``"indented"``.
        separators: what is written for ``,`` and for ``:``, as for ``json.dumps``: the comma and the colon with white
            space around them, or regular expressions (dialect ``rust``) whose texts are such.  Where ``whitespace``
            leaves a choice, it holds on both sides of them.  ``None``: as ``whitespace`` says.
        space: a regular expression for the optional whitespace around the structural characters, which replaces
            ``whitespace``; its texts are of the four characters of RFC 8259.
        around: whether whitespace may stand before and after the document: as around the structural characters, and
            at most ``indent`` characters where these have a fixed form.
        digits: the maximum number of digits of the integer part and of the fraction, so that a number always ends;
            a bound or a constant that needs more digits gets them; with ``not`` over ``multipleOf`` such a bound is
            refused.
        order: the order of the members of an object.
            ``"declared"``: declared names in the order of the schema, others anywhere between.
            ``"any"``: every order, also within constants.
        numbers: how integers and constants are written.  ``"canonical"``: integers without point and exponent, a
            constant as in the schema.  ``"all"``: every number of the same value, also ``1.0`` and ``1e2``.
        escapes: how names and constants are written.  ``"canonical"``: escaped only where necessary.
            ``"all"``: every spelling of RFC 8259, as for other strings.
        formats: whether ``format`` restricts strings.  ``"asserted"``: it does, in every draft.  ``"annotation"``:
            it does not, which is the default of the drafts from 2019-09 on.
        additional: whether an object may have undeclared members where the schema does not say.
            ``"forbidden"``: only members that ``properties``, ``patternProperties``, ``required`` or
            ``dependentRequired`` name, in any schema that applies to the object (one alternative of each ``anyOf`` and
            ``oneOf``).  ``additionalProperties`` and ``unevaluatedProperties`` in any of these schemas override the
            policy, and a schema that names no member, such as ``{"type": "object"}``, stays open.
            ``"written"``: it may, as in the specification.
        required: which members an object must have.  ``"written"``: those that the schema requires.  ``"all"``: also
            those that ``properties`` declare, in any schema that applies to the object, as in OpenAI's strict mode.
        repeated: whether an object may have two members of one undeclared name; of declared names it never has.
            ``"allowed"``: it may, except where ``minProperties`` counts names.  ``"forbidden"``: never, whatever the
            spellings of the name.  No automaton remembers names, so they are compared while they are written, and what
            needs an automaton (canvases of diffusion models, ``structgen diff``, uniform samples) refuses the grammar.
        max_depth: the maximum nesting of arrays and objects (``[]`` has depth 1); ``None``: no bound.
        max_length: the maximum number of code points of a string or undeclared name, unless the schema has a lower one.
        max_items: the maximum number of items of an array, likewise.
        max_members: the maximum number of members with undeclared names in an object.

    The last six restrict what a schema leaves open; they do not change constants.

    The defaults are for writing.  All texts of valid values, as a validator reads them, are close to
    ``JsonPolicy(whitespace="flexible", order="any", numbers="all", escapes="all", additional="written")``.

    >>> JsonPolicy(whitespace="indented").width, JsonPolicy(separators=(",", ": ")).lines()[0][1]
    (2, "single: ',' between members, ': ' after a name, none elsewhere; none before or after the document")
    """

    whitespace: Whitespace = "single"
    indent: int | str | None = None
    separators: tuple[str, str] | None = None
    space: str | None = None
    around: bool = False
    digits: int = 64
    order: Order = "declared"
    numbers: Forms = "canonical"
    escapes: Forms = "canonical"
    formats: Formats = "asserted"
    additional: Additional = "forbidden"
    required: Required = "written"
    repeated: Repeated = "allowed"
    max_depth: int | None = None
    max_length: int | None = None
    max_items: int | None = None
    max_members: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (
            ("whitespace", get_args(Whitespace)),
            ("order", get_args(Order)),
            ("numbers", get_args(Forms)),
            ("escapes", get_args(Forms)),
            ("formats", get_args(Formats)),
            ("additional", get_args(Additional)),
            ("required", get_args(Required)),
            ("repeated", get_args(Repeated)),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"JsonPolicy: {name} is {getattr(self, name)!r}; give one of {', '.join(choices)}")
        if isinstance(self.indent, str) and (self.whitespace != "indented" or self.indent.strip(_SPACES)):
            raise ValueError(
                f"JsonPolicy: indent is {self.indent!r}; give a number, or white space with whitespace='indented'"
            )
        for name, value, minimum, maximum in (("indent", self.width, 0, _MAX_INDENT), ("digits", self.digits, 1, 200)):
            if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
                raise ValueError(f"JsonPolicy: {name} is {value!r}; give an integer from {minimum} to {maximum}")
        if not isinstance(self.around, bool):
            raise ValueError(f"JsonPolicy: around is {self.around!r}; give True or False")
        self._check_spacing()
        for name, maximum in (("max_depth", 500), ("max_length", _MANY), ("max_items", _MANY), ("max_members", 1_000)):
            bound = getattr(self, name)
            if bound is not None and (
                not isinstance(bound, int) or isinstance(bound, bool) or not 0 <= bound <= maximum
            ):
                raise ValueError(f"JsonPolicy: {name} is {bound!r}; give an integer from 0 to {maximum}, or None")

    def _check_spacing(self) -> None:
        separators = self.separators
        if separators is not None:
            if (
                not isinstance(separators, tuple)
                or len(separators) != 2
                or not all(isinstance(part, str) for part in separators)
            ):
                raise ValueError(
                    f"JsonPolicy: separators is {separators!r}; give a pair of strings such as (', ', ': ')"
                )
            for mark, pattern in zip(",:", separators, strict=True):
                spacing(pattern, mark, "JsonPolicy: separators")
        if self.space is not None:
            if not isinstance(self.space, str) or self.whitespace == "indented":
                raise ValueError(
                    f"JsonPolicy: space is {self.space!r}; give a regular expression, and not whitespace='indented' too"
                )
            spacing(self.space, "", "JsonPolicy: space")

    @property
    def width(self) -> int:
        """``indent`` as a number of characters."""
        if self.indent is None:
            return _STEP if self.whitespace == "indented" else _MAX_SPACES
        return len(self.indent) if isinstance(self.indent, str) else self.indent

    @property
    def depth(self) -> int | None:
        """The bound on the nesting of arrays and objects; ``None``: there is none."""
        return _DEEPEST if self.max_depth is None and self.whitespace == "indented" else self.max_depth

    @property
    def has_bounds(self) -> bool:
        """Whether the policy bounds what a schema leaves open."""
        bounds = (self.depth, self.max_length, self.max_items, self.max_members)
        return any(bound is not None for bound in bounds)

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Each choice as (name, value), for the report."""
        return (
            ("whitespace", self._whitespace_line()),
            ("property order", _ORDERS[self.order]),
            ("repeated names", _REPEATED[self.repeated]),
            ("escapes", _ESCAPES[self.escapes]),
            ("integers", _INTEGERS[self.numbers].format(self.digits)),
            ("numbers", _NUMBERS[self.numbers].format(self.digits)),
            ("constants", _CONSTANTS[self.numbers]),
            ("format", _FORMATS[self.formats]),
            ("nullable", "'nullable': true adds null to 'type', as in OpenAPI 3.0"),
            ("additional members", _ADDITIONAL[self.additional]),
            ("required members", _REQUIRED[self.required]),
            ("nesting", _bound(self.depth, "arrays and objects around each other")),
            ("length of strings", _bound(self.max_length, "code points, of undeclared names too")),
            ("items", _bound(self.max_items, "in an array")),
            ("undeclared members", _bound(self.max_members, "in an object")),
        )

    def _whitespace_line(self) -> str:
        name: str = self.whitespace if self.space is None else "pattern"
        marks = "around '{}[],:'"
        inside = {
            "flexible": f"at most one space, one line break and {self.width} spaces or tabs {marks}",
            "runs": f"at most {self.width} characters of white space {marks}",
            "any": f"any {marks}",
            "pattern": f"none or a text of {self.space!r} {marks}",
            "indented": f"a line for each member and item, indented by {self.width} for each level",
            "compact": "none",
            "single": "', ' between members, ': ' after a name, none elsewhere",
        }[name]
        if self.separators is not None:
            comma, colon = self.separators
            written = f"{comma!r} between members, {colon!r} after a name"
            inside = f"{written}, none elsewhere" if name in ("compact", "single") else f"{written}; {inside}"
        outside = f"at most {self.width} characters" if name in ("compact", "single", "indented") else "the same"
        return f"{name}: {inside}; {outside if self.around else 'none'} before or after the document"


@lru_cache(maxsize=256)
def spacing(pattern: str, mark: str, subject: str) -> Grammar:
    r"""The texts of a regular expression that JSON allows around ``mark``: white space, ``mark``, white space.

    Args:
        pattern: in the dialect ``rust``.
        mark: ``","`` or ``":"``; empty for white space alone.
        subject: what error texts are about.

    Raises:
        GrammarError: the pattern is malformed, or has a text that is not of this form.

    >>> spacing(", ?", ",", "separators")
    <Grammar: ", " | ",">
    """
    from structgen.frontends.disjointness import are_disjoint  # rarely needed, as is the next
    from structgen.frontends.regex import regex
    from structgen.grammar.algebra import undescribed

    try:
        term = undescribed(regex(pattern, dialect="rust"))
    except GrammarError as error:
        raise GrammarError(subject, f"{pattern!r} is refused: {error}", remedy="give a regular expression") from error
    others = rf"[ \t\n\r]*{mark}[ \t\n\r]*[^ \t\n\r](?s:.*)"
    if mark:
        others = rf"[ \t\n\r]*([^ \t\n\r{mark}](?s:.*))?|{others}"
    if not are_disjoint(term, undescribed(regex(others, dialect="rust"))):
        expected = f"{mark!r} with white space around it" if mark else "white space"
        raise GrammarError(
            subject,
            f"{pattern!r} may match a text that is not {expected}, so that the document would not be JSON",
            remedy=f"write an expression for {expected} only",
        )
    return term


def _bound(maximum: int | None, what: str) -> str:
    return "as the schema says" if maximum is None else f"at most {maximum} {what}"


_FORMATS: Final = {"asserted": "asserted, also where the draft does not list it", "annotation": "not asserted"}
_ADDITIONAL: Final = {
    "written": "allowed where the schema says nothing of them",
    "forbidden": "forbidden where the schema names others and says nothing of them; allowed where it names none",
}
_REQUIRED: Final = {
    "written": "as the schema says",
    "all": "all that the schema declares, required or not",
}
_REPEATED: Final = {
    "allowed": "never for a declared name; for undeclared ones where 'minProperties' counts them",
    "forbidden": "never; undeclared names are compared as they are written",
}
_ESCAPES: Final = {
    "canonical": "names and constants as json.dumps(ensure_ascii=False) writes them; free strings in any way; "
    "no lone surrogates",
    "all": "in any way, surrogate pairs in two escapes or as one character; no lone surrogates",
}
_INTEGERS: Final = {
    "canonical": "-?(0|[1-9][0-9]*) with at most {} digits",
    "all": "every number whose value is an integer (draft 4: without point and exponent), with at most {} digits on "
    "each side of the point",
}
_NUMBERS: Final = {
    "canonical": "any JSON form with at most {} digits on each side of the point that double precision can hold; "
    "exponents of 100 and more, and any under 'minimum' and 'maximum', only after one digit that is not zero before "
    "the point; none under 'multipleOf'",
    "all": "any JSON form with at most {} digits on each side of the point that double precision can hold; "
    "exponents of 100 and more only after one digit that is not zero before the point; under 'minimum', 'maximum' and "
    "for constants the point is at most 8 places from there; no exponents under 'multipleOf'",
}
_CONSTANTS: Final = {
    "canonical": "as the schema spells them; 1.0 also as 1",
    "all": "as every number of the same value",
}
