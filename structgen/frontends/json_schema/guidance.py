"""The member ``x-guidance`` of a schema, which tells llguidance how its documents are written.

At the root of the schema it is honoured: its options change the setting in which the schema is read. Anywhere else
llguidance does not see it, so it is refused there, as are options without a counterpart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from structgen.errors import GrammarError, UnsupportedFeature, meant
from structgen.frontends.json_schema.native import new_setting, setting_of
from structgen.frontends.json_schema.normal.keyword_reader import GUIDANCE
from structgen.frontends.json_schema.policy import spacing
from structgen.frontends.json_schema.setting import Setting
from structgen.frontends.json_schema.source.json_value import SUBJECT
from structgen.frontends.json_schema.source.location import escaped, shown

if TYPE_CHECKING:
    from structgen.frontends.json_schema.source.json_value import Json

__all__ = ["guided_setting"]

_SPACING: Final = ("item_separator", "key_separator", "whitespace_flexible", "whitespace_pattern")
_OPTIONS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "item_separator": ((str,), "a regular expression"),
    "key_separator": ((str,), "a regular expression"),
    "whitespace_flexible": ((bool,), "true or false"),
    "whitespace_pattern": ((str, type(None)), "a regular expression or null"),
    "coerce_one_of": ((bool,), "true or false"),
    "lenient": ((bool,), "true or false"),
}
_REFUSED: Final = ("json_allowed_escapes", "json_allow_general_unicode_escapes")


def guided_setting(schema: Json, setting: Setting) -> Setting:
    """The setting that the ``x-guidance`` of a schema asks for, else ``setting`` itself.

    If any of its options concerns white space or separators, all of them are as in llguidance, with its defaults:
    ``,`` and ``:`` with any white space around them; otherwise the policy decides. Separators and patterns are regular
    expressions in the dialect ``rust``. ``coerce_one_of`` reads every ``oneOf`` as ``anyOf``. ``lenient`` permits
    keywords to be left out, and none is.

    Raises:
        GrammarError: an option is unknown or has a value of another type.
        UnsupportedFeature: an option cannot be honoured: with its texts a document would not be JSON, or it restricts
            the escapes of strings.
    """
    if not isinstance(schema, dict) or GUIDANCE not in schema:
        return setting
    options: Any = schema[GUIDANCE]
    _check(options)
    policy = setting.policy
    if any(name in options for name in _SPACING):
        comma, colon = (_separator(options, name, mark) for name, mark in zip(_SPACING, ",:", strict=False))
        space = options.get("whitespace_pattern")
        if space is not None:
            _separator(options, "whitespace_pattern", "")
        policy = replace(
            policy,
            whitespace="any" if options.get("whitespace_flexible", True) or space is not None else "compact",
            separators=None if (comma, colon) == (",", ":") else (comma, colon),
            space=space,
            indent=None if isinstance(policy.indent, str) else policy.indent,
        )
    coerces = options.get("coerce_one_of", False)
    if setting.formats or coerces:
        return new_setting(policy, setting.limits, setting.formats, coerces_one_of=coerces)
    return setting_of(policy, setting.limits)


def _check(options: Any) -> None:
    if not isinstance(options, dict):
        raise GrammarError(_subject(), f"{GUIDANCE!r} must be an object", evidence=f"found {shown(options)}")
    for name, value in options.items():
        if name in _REFUSED:
            raise UnsupportedFeature(
                _subject(name),
                GUIDANCE,
                where=_pointer(name),
                problem=f"{name!r} is not enforced: strings have every escape of RFC 8259",
                remedy=f"remove {name!r}",
            )
        if name not in _OPTIONS:
            remedy = meant(name, _OPTIONS) or f"give one of {', '.join(_OPTIONS)}"
            raise GrammarError(_subject(name), f"{name!r} is not an option of {GUIDANCE!r}", remedy=remedy)
        types, expected = _OPTIONS[name]
        if not isinstance(value, types):
            raise GrammarError(_subject(name), f"{name!r} must be {expected}", evidence=f"found {shown(value)}")


def _separator(options: dict[str, Any], name: str, mark: str) -> str:
    """The expression of an option, whose texts are ``mark`` with white space around it."""
    pattern: str = options.get(name, mark)
    try:
        spacing(pattern, mark, _subject(name))
    except GrammarError as error:
        raise UnsupportedFeature(
            _subject(name), GUIDANCE, where=_pointer(name), problem=error.problem, remedy=error.remedy
        ) from error
    return pattern


def _pointer(*names: str) -> str:
    return "/".join(("#", GUIDANCE, *map(escaped, names)))


def _subject(*names: str) -> str:
    return f"{SUBJECT} {_pointer(*names)}"
