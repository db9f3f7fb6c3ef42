"""The choices that a JSON Schema leaves open: how a valid value may be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

__all__ = ["Additional", "Formats", "Forms", "JsonPolicy", "Order", "Repeated", "Required", "Whitespace"]

Whitespace: TypeAlias = Literal["flexible", "compact", "single"]
Order: TypeAlias = Literal["declared", "any"]
Forms: TypeAlias = Literal["canonical", "all"]
Formats: TypeAlias = Literal["asserted", "annotation"]
Additional: TypeAlias = Literal["written", "forbidden"]
Required: TypeAlias = Literal["written", "all"]
Repeated: TypeAlias = Literal["allowed", "forbidden"]


_MANY: Final = 1_000_000
_ORDERS: Final[dict[Order, str]] = {"declared": "declared; undeclared and pattern names anywhere between", "any": "any"}


@dataclass(frozen=True, slots=True)
class JsonPolicy:
    """Which spellings of a valid JSON value the grammar accepts.

    Attributes:
        whitespace: the whitespace around the structural characters ``{ } [ ] , :``.
            ``"single"``: ``", "`` and ``": "``, as ``json.dumps`` writes by default.
            ``"compact"``: none.
            ``"flexible"``: at most one space, then at most one line break followed by at most ``indent`` spaces and
            tabs; this covers ``json.dumps`` with its defaults, compact, and with any usual ``indent=``.
        indent: the maximum number of spaces and tabs after a line break, so that whitespace always ends.
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

    >>> JsonPolicy(whitespace="compact").indent
    256
    """

    whitespace: Whitespace = "single"
    indent: int = 256
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
        for name, minimum, maximum in (("indent", 0, 10_000), ("digits", 1, 200)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
                raise ValueError(f"JsonPolicy: {name} is {value!r}; give an integer from {minimum} to {maximum}")

        for name, maximum in (("max_depth", 500), ("max_length", _MANY), ("max_items", _MANY), ("max_members", 1_000)):
            bound = getattr(self, name)
            if bound is not None and (
                not isinstance(bound, int) or isinstance(bound, bool) or not 0 <= bound <= maximum
            ):
                raise ValueError(f"JsonPolicy: {name} is {bound!r}; give an integer from 0 to {maximum}, or None")

    @property
    def has_bounds(self) -> bool:
        """Whether any of the ``max_`` bounds is set."""
        bounds = (self.max_depth, self.max_length, self.max_items, self.max_members)
        return any(bound is not None for bound in bounds)

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Each choice as (name, value), for the report."""
        around = {
            "flexible": f"at most one space, one line break and {self.indent} spaces or tabs around '{{}}[],:'",
            "compact": "none",
            "single": "', ' between members, ': ' after a name, none elsewhere",
        }
        return (
            ("whitespace", f"{self.whitespace}: {around[self.whitespace]}; none before or after the document"),
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
            ("nesting", _bound(self.max_depth, "arrays and objects around each other")),
            ("length of strings", _bound(self.max_length, "code points, of undeclared names too")),
            ("items", _bound(self.max_items, "in an array")),
            ("undeclared members", _bound(self.max_members, "in an object")),
        )


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
