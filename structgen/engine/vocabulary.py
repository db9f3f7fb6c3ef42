"""The tokens of a model as bytes, for which a Grammar is compiled."""

from __future__ import annotations

import hashlib
import operator
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar, final

from structgen.engine.tokenizers.table import (
    Encoder,
    Speller,
    checked_size,
    checked_tokens,
    eos_ids,
    load_trie,
    tokens_digest,
)
from structgen.errors import ArgumentError, VocabularyError, found, number_of, some
from structgen.memory_cache import CONSTRAINTS, ContentCache, Followed, Held, report_also

if TYPE_CHECKING:
    from structgen_kernels._native import TokenTrie

    from structgen.engine.constraint import Constraint
    from structgen.engine.lowering import Engine

__all__ = ["Vocabulary", "by_id", "checked_id", "listed"]

_Item = TypeVar("_Item")

_SUBJECT = "vocabulary"


def checked_id(token: int, role: str, size: int) -> int:
    """Return the id as an int; numpy and torch integers are ids too."""
    try:
        number = operator.index(token)
    except TypeError as error:
        raise VocabularyError(_SUBJECT, f"{role} id {token!r:.40} is not an integer") from error
    if not 0 <= number < size:
        raise VocabularyError(
            _SUBJECT,
            f"{role} id {number} is out of range",
            evidence=f"the vocabulary has {number_of(size, 'id')}",
            remedy=f"use ids in 0..{size - 1}, or pass size= if the model's logits are wider",
        )
    return number


def by_id(special: Mapping[int, str | None] | Iterable[int]) -> Mapping[int, str | None]:
    """Return texts by id, None where there is no text yet."""
    return special if isinstance(special, Mapping) else dict.fromkeys(listed(special, "special"))


def listed(values: Iterable[_Item], role: str) -> Iterable[_Item]:
    """Return ``values``; refuse a single number or text, which callers may write for a list of one."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise VocabularyError(
            _SUBJECT,
            f"{role} must be a list of tokens",
            evidence=f"found {values!r:.40}",
            remedy=f"pass {role}=[] for none" if values is None else f"pass {role}=[{values!r:.40}]",
        )
    return values


# Prefixes to encode a text after: SentencePiece adds a space at the start of a text, but not after a line break.
_CONTEXTS = ("", "\n")
_MAX_OTHERS: Final = 8


@final
class Vocabulary:
    """Token ids and the bytes they stand for; immutable and safe to share between threads.

    An id with empty bytes is never allowed as text: special tokens, the padding of a model head that is wider than the
    tokenizer, and ordinary tokens without bytes.  Several ids may have the same bytes.  Equality and hash go by
    ``digest``.

    A Constraint works without ``eos``, but then the model cannot stop: generation ends only when the grammar allows no
    further token, or at the token limit.

    Example:
        >>> vocabulary = Vocabulary([b"", b"a", b"b", b"ab"], eos=[0], special={0: "<eos>"})
        >>> vocabulary.tokenize("aab")
        [1, 3]
        >>> vocabulary.decode([1, 3, 0])
        b'aab'
    """

    __slots__ = (
        "__weakref__",
        "_digest",
        "_encode",
        "_eos",
        "_lock",
        "_missing",
        "_others",
        "_special",
        "_speller",
        "_tokens",
        "_trie",
        "canonical",
        "constraints",
        "engine",
    )

    def __init__(
        self,
        tokens: Sequence[bytes],
        *,
        eos: Iterable[int] = (),
        special: Mapping[int, str | None] | Iterable[int] = (),
        size: int | None = None,
        tokenize: Callable[[str], list[int]] | None = None,
    ) -> None:
        """Make a vocabulary from the bytes of its tokens.

        Args:
            tokens: bytes by id; those of special tokens and EOS ids are ignored.
            eos: ids that end an output; special whether or not ``special`` lists them.
            special: tokens that are not text: names by id, or only ids.  A token without a name is named after its
                bytes, or ``"<[id]>"`` if it has none.
            size: width of the model's logits, if it is more than ``len(tokens)``.
            tokenize: the tokenizer's own encode, without BOS and EOS; used if its tokens spell exactly the bytes of
                the text.  It must be deterministic, and safe to call from several threads.

        Raises:
            VocabularyError: a token is not bytes, an id is out of range, or no token stands for any text.
        """
        slots = checked_tokens(tokens, size)
        if not slots:
            raise VocabularyError(_SUBJECT, "there are no tokens", remedy="pass the bytes of each token, by id")
        ends = [checked_id(token, "eos", len(slots)) for token in listed(eos, "eos")]
        texts = {checked_id(token, "special", len(slots)): text for token, text in by_id(special).items()}
        names = {token: _special_name(token, texts.get(token), slots[token]) for token in sorted({*texts, *ends})}
        for token in names:
            slots[token] = b""
        if not any(slots):
            raise VocabularyError(_SUBJECT, "no token stands for any text", remedy="check which tokens are special")
        self._tokens: tuple[bytes, ...] = tuple(slots)
        self._eos: tuple[int, ...] = tuple(dict.fromkeys(ends))
        self._special: Mapping[int, str] = MappingProxyType(names)
        self._encode: Encoder | None = tokenize
        self._lock = threading.Lock()
        self.constraints: ContentCache[Constraint] = ContentCache(CONSTRAINTS)  # for compile()
        self.engine: Engine | None = None  # likewise
        self.canonical: object | None = None  # for canonical_tokens()
        self._digest: bytes | None = None
        self._missing: bytes | None = None
        self._speller: Speller | None = None
        self._trie: TokenTrie | None = None
        self._others: dict[tuple[int, ...], Vocabulary] = {}  # of with_eos()
        _live.add(self)

    @classmethod
    def load(
        cls,
        source: object,
        *,
        size: int | None = None,
        eos: Iterable[int | str] | None = None,
        special: Mapping[int, str | None] | Iterable[int] = (),
    ) -> Vocabulary:
        """Read the vocabulary of a tokenizer.

        Args:
            source: a tokenizer object of transformers, ``tokenizers``, tiktoken, ``sentencepiece`` or
                mistral-common; the path of a tokenizer.json, tekken.json, SentencePiece model, tiktoken ranks
                or GGUF file, or of a folder with one of them; or a list of bytes.
            size: width of the model's logits; None takes it from config.json if that is more than the tokenizer has.
            eos: ids or names of the tokens that end an output, in place of those of the source.
            special: special tokens besides those of the source.

        Raises:
            VocabularyError: the source cannot be read, or the bytes of its tokens are not well defined.
        """
        from structgen.engine.tokenizers.reader import read_source  # imports every reader

        table = read_source(source, resolve_eos=eos is None)
        ends = table.eos if eos is None else eos_ids(table, listed(eos, "eos"))
        width = max(len(table.tokens), table.size or 0, size or 0)
        more = {token: text for token, text in by_id(special).items() if text or token not in table.special}
        texts: dict[int, str | None] = {**table.special, **more}
        whole = cls(table.tokens, eos=ends, special=texts, size=width, tokenize=table.encode)
        return whole if size is None else whole.with_size(size)

    @property
    def tokens(self) -> tuple[bytes, ...]:
        """The bytes of each token by id; ``b""`` for special tokens and padding."""
        return self._tokens

    @property
    def size(self) -> int:
        """The number of ids, padding of the model head included."""
        return len(self._tokens)

    @property
    def eos(self) -> tuple[int, ...]:
        """The ids that end an output."""
        return self._eos

    @property
    def special(self) -> Mapping[int, str]:
        """The names of the special tokens by id, EOS ids included."""
        return self._special

    @property
    def encoder(self) -> Encoder | None:
        """The tokenizer's own encode, if there is one."""
        return self._encode

    @property
    def digest(self) -> bytes:
        """Content hash (16 bytes, BLAKE2b): equal digests mean equal masks for every grammar."""
        if self._digest is None:
            inner = hashlib.blake2b(tokens_digest(self._tokens), digest_size=16)
            inner.update(repr((self._eos, list(self._special.items()))).encode("utf-8", "surrogatepass"))
            self._digest = inner.digest()
        return self._digest

    @property
    def missing_bytes(self) -> bytes:
        """The byte values, ascending, that are no token by themselves; if there are none, any text can be spelled."""
        if self._missing is None:
            alone = {token[0] for token in self._tokens if len(token) == 1}
            self._missing = bytes(value for value in range(256) if value not in alone)
        return self._missing

    @property
    def trie(self) -> TokenTrie:
        """The native byte trie of the tokens, made on first use and cached on disk for the next process."""
        if self._trie is None:
            with self._lock:
                if self._trie is None:
                    self._trie = load_trie(self._tokens)
        return self._trie

    def tokenize(self, text: str | bytes) -> list[int]:
        """Return the canonical tokens of ``text``: their bytes, joined, are exactly its UTF-8.

        They are those of the tokenizer if it spells the text exactly (a normalizer may change the text), else a
        spelling with as few tokens as possible.  Names of special tokens in the text are plain text.  No space is added
        before the text.

        Raises:
            VocabularyError: the text has a byte that no tokens spell, or is a str with a lone surrogate.
            ArgumentError: it is neither str nor bytes.
        """
        data, written = _both_forms(text)
        if not data:
            return []
        if self._encode is not None and written is not None:
            for context in _CONTEXTS:
                tokens = self._tail(self._encode(context + written), data)
                if tokens is not None:
                    return tokens
        if self._speller is None:
            self._speller = Speller(self._tokens)
        return self._speller.spell(data)

    def decode(self, ids: Iterable[int]) -> bytes:
        """Join the bytes of the tokens; special ids and padding contribute nothing.

        Raises:
            VocabularyError: an id is out of range.
        """
        tokens = self._tokens
        try:
            return b"".join([tokens[checked_id(token, "token", len(tokens))] for token in ids])
        except TypeError:
            listed(ids, "ids")
            raise

    def token_id(self, text: str) -> int:
        """Return the id of the special token named ``text``, the lowest if there are several.

        Raises:
            VocabularyError: there is no such special token.
            ArgumentError: it is no str.
        """
        for token, name in self._special.items():
            if name == text:
                return token
        if not isinstance(text, str):
            remedy = "tokens[id] has the bytes of an id" if isinstance(text, int) else "pass its name as a str"
            raise ArgumentError("token_id", "expected the name of a special token", evidence=found(text), remedy=remedy)
        evidence = f"the special tokens are {some(self._special.values()) or 'none'}"
        if (ordinary := text.encode("utf-8", "surrogatepass")) and ordinary in self._tokens:
            evidence = f"token {self._tokens.index(ordinary)} has these bytes, but it is ordinary text"
        raise VocabularyError(
            _SUBJECT,
            f"there is no special token {text!r}",
            evidence=evidence,
            remedy="name one of its special tokens, or make it one: Vocabulary.load(..., special={id: text})",
        )

    def with_size(self, size: int) -> Vocabulary:
        """Return this vocabulary for a model head of ``size`` logits; ids from ``size`` on are dropped.

        Raises:
            VocabularyError: no token with text would be left, or no EOS id although there is one now.
        """
        size = checked_size(size)
        if size == self.size:
            return self
        ends = [token for token in self._eos if token < size]
        if self._eos and not ends:
            raise VocabularyError(
                _SUBJECT,
                f"size {size} leaves no EOS id",
                evidence=f"the EOS ids are {some(self._eos)}",
                remedy="pass the width of the model's logits",
            )
        special = {token: text for token, text in self._special.items() if token < size}
        return Vocabulary(self._tokens[: max(size, 0)], eos=ends, special=special, size=size, tokenize=self._encode)

    def with_eos(self, eos: Iterable[int | str]) -> Vocabulary:
        """Return this vocabulary with other special tokens, ids or names, that end an output: those of a request.

        Matchers of both may share a batch. Equal ids give the same object while it is among the last few.

        Raises:
            VocabularyError: there is no such token, or it is ordinary text.
        """
        given = [self.token_id(one) if isinstance(one, str) else one for one in listed(eos, "eos")]
        ends = tuple(dict.fromkeys(checked_id(token, "eos", len(self._tokens)) for token in given))
        text = next((token for token in ends if token not in self._special), None)
        if text is not None:
            raise VocabularyError(
                _SUBJECT,
                f"token {text} cannot end an output: it is ordinary text, {self._tokens[text]!r:.60}",
                remedy="end the grammar with this text, or make it special: Vocabulary.load(..., special=[...])",
            )
        if ends == self._eos:
            return self
        trie = self.trie
        with self._lock:
            if (made := self._others.pop(ends, None)) is None:
                made = Vocabulary(self._tokens, eos=ends, special=self._special, tokenize=self._encode)
                made._tokens, made._trie = self._tokens, trie
            self._others[ends] = made
            if len(self._others) > _MAX_OTHERS:
                del self._others[next(iter(self._others))]
        return made

    def _tail(self, ids: Sequence[int], data: bytes) -> list[int] | None:
        """Return the last ``ids`` that spell exactly ``data``, None if they do not."""
        left, start = len(data), len(ids)
        while left > 0 and start > 0:
            start -= 1
            token = ids[start]
            piece = self._tokens[token] if 0 <= token < len(self._tokens) else b""
            if not piece or not data.endswith(piece, 0, left):
                return None
            left -= len(piece)
        return list(ids[start:]) if left == 0 else None

    def __len__(self) -> int:
        return len(self._tokens)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Vocabulary) and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Vocabulary({number_of(self.size, 'token')}, eos=[{some(self._eos)}], {len(self._special)} special)"

    def __copy__(self) -> Vocabulary:
        return self

    def __deepcopy__(self, memo: object) -> Vocabulary:
        return self

    def __reduce__(self) -> tuple[Callable[..., Vocabulary], tuple[object, ...]]:
        if "<" in (name := getattr(self._encode, "__qualname__", "")):
            raise ArgumentError(
                _SUBJECT,
                "its tokenize function can't be pickled",
                evidence=f"{name} is defined within a function",
                remedy="define it at the top of a module",
            )
        return _restore, (self._tokens, self._eos, dict(self._special), self._encode)


def _restore(
    tokens: tuple[bytes, ...], eos: tuple[int, ...], special: dict[int, str], encode: Encoder | None
) -> Vocabulary:
    return Vocabulary(tokens, eos=eos, special=special, tokenize=encode)


def _special_name(token: int, text: str | None, piece: bytes) -> str:
    if text is not None and not isinstance(text, str):
        raise VocabularyError(
            _SUBJECT, f"the text of special token {token} is not a str", evidence=f"found {text!r:.40}"
        )
    if text is not None:
        return text
    try:
        return piece.decode() or f"<[{token}]>"
    except UnicodeDecodeError:
        return f"<[{token}]>"


def _both_forms(text: str | bytes) -> tuple[bytes, str | None]:
    """Return the text as bytes, and as str if the bytes are valid UTF-8."""
    if isinstance(text, str):
        try:
            return text.encode(), text
        except UnicodeEncodeError as error:
            raise VocabularyError(
                _SUBJECT,
                f"the text has a lone surrogate at character {error.start}",
                evidence=f"found {text[error.start]!r}",
                remedy="a lone surrogate has no UTF-8; replace it",
            ) from error
    if not isinstance(text, bytes):
        raise ArgumentError("tokenize", "expected a text or bytes", evidence=found(text), remedy="decode() takes ids")
    try:
        return text, text.decode()
    except UnicodeDecodeError:
        return text, None


_live: Final[Followed[Vocabulary]] = Followed()


def _tries() -> list[TokenTrie]:
    return list({id(each._trie): each._trie for each in _live if each._trie is not None}.values())


def _held() -> Iterator[Held]:
    vocabularies = list(_live)
    tables = {id(each.tokens): each.tokens for each in vocabularies}
    size = sum(sum(map(sys.getsizeof, table)) + sys.getsizeof(table) for table in tables.values())
    yield Held("vocabularies", len(vocabularies), size + sum(trie.memory_bytes for trie in _tries()))


def _drop_derived() -> None:
    for trie in _tries():
        trie.drop_derived()


report_also(_held, _drop_derived)
