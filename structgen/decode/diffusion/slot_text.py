"""Slots as people read them: every character is visible, and none acts on a terminal or a page.

A token may hold half a character, a line break, an escape sequence or marks that turn the direction of the text around.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["END", "slot_text", "visible"]

END: Final = "∎"
"""What EOS is shown as."""

_CONTROL_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F


def slot_text(vocabulary: Vocabulary, token: int) -> str:
    r"""Return what a fixed slot is shown as; never empty.

    Special tokens stand in angle brackets, EOS is ``END``, and bytes that are no whole character are ``\xNN``.
    """
    if token in vocabulary.eos:
        return END
    data = vocabulary.tokens[token]
    if not data:
        return f"⟨{visible(vocabulary.special.get(token) or str(token))}⟩"
    return visible(data.decode("utf-8", "backslashreplace"))


def visible(text: str) -> str:
    r"""Return a text with everything spelled out that is not shown as a character of its own.

    Control characters become their pictures (``␊``), other invisible ones their numbers (``\u{202e}``).
    """
    return "".join(_character(each) for each in text)


def _character(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code < ord(" "):
        return chr(_CONTROL_PICTURES + code)
    return "␡" if code == _DELETE else f"\\u{{{code:x}}}"
