"""Write any grammar term as bytes, and read it back: what ``Grammar.to_bytes`` and ``Grammar.from_bytes`` do.

The form, with numbers in LEB128 (seven bits a byte, the lowest first):

    data    = magic version hash payload
    payload = number-of-nodes {node}          the children of a node come before it, the root is the last node
    node    = kind {field}                    a child is the number of nodes back to it

``hash`` is BLAKE2b (16 bytes) over version and payload.  It finds damage; it is no signature, so every field that is
read is checked, whoever wrote it.  Each content is written once, in the order in which a walk first meets it, so equal
terms give equal bytes.  Nothing recurses, and the work and memory are linear in the bytes.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from structgen.errors import ArgumentError, GrammarError, LimitExceeded, found
from structgen.grammar import nodes as ir
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Description, ReportEntry, Status
from structgen.grammar.visitor import NodeTable

__all__ = ["VERSION", "ByteReader", "ByteWriter", "pack", "sealed", "unpack", "unsealed"]

VERSION: Final = 1
"""Of the form of grammars; a version is read by all later ones."""
_MAGIC: Final = b"structgen grammar\n"
_HASH_BYTES: Final = 16
_SUM_BYTES: Final = 4
_MAX_NUMBER_BITS: Final = 448
_SUBJECT: Final = "saved grammar"
_DAMAGED: Final = "restore the file, or make and save it again"


def sealed(magic: bytes, version: int, payload: bytes, *, summed_from: int | None = None) -> bytes:
    """Put magic, version and content hash before a payload.

    From version ``summed_from`` on a CRC-32 stands for the hash: it finds damage as well, in a fifth of the time.
    """
    is_summed = summed_from is not None and version >= summed_from
    return b"".join((magic, bytes([version]), _content_hash(version, payload, is_summed=is_summed), payload))


def _content_hash(version: int, payload: bytes | memoryview, *, is_summed: bool) -> bytes:
    if is_summed:
        return zlib.crc32(payload, version).to_bytes(_SUM_BYTES, "little")
    content = hashlib.blake2b(bytes([version]), digest_size=_HASH_BYTES)
    content.update(payload)
    return content.digest()


def unsealed(data: bytes, magic: bytes, version: int, subject: str, *, summed_from: int | None = None) -> memoryview:
    """Return the payload of what ``sealed`` wrote, in this version or an earlier one.

    Raises:
        GrammarError: other data, a newer version, or the content hash differs.
    """
    if not data.startswith(magic):
        what = "it is cut short" if data and magic.startswith(data) else "it is something else"
        raise GrammarError(subject, what, evidence=f"it begins with {data[:20]!r}", remedy=f"pass a {subject}")
    written = data[len(magic)] if len(data) > len(magic) else version
    is_summed = summed_from is not None and written >= summed_from
    size = _SUM_BYTES if is_summed else _HASH_BYTES
    start = len(magic) + 1 + size
    if written > version:
        raise GrammarError(
            subject,
            "a newer version of structgen wrote it",
            evidence=f"its form has version {written}, and this one reads up to {version}",
            remedy="read it with that version, or save it with this one",
        )
    payload = memoryview(data)[start:]
    if len(data) < start or data[start - size : start] != _content_hash(written, payload, is_summed=is_summed):
        raise GrammarError(
            subject, "it is damaged", evidence=f"{len(data)} bytes do not have its content hash", remedy=_DAMAGED
        )
    return payload


def pack(grammar: Grammar, *, with_entries: bool = False) -> bytes:
    """Write a term.

    ``with_entries`` adds the entries of descriptions.  They are no part of what makes terms equal, so each node object
    is written then, and equal terms may give different bytes.

    Raises:
        GrammarError: a count of more than 448 bits.

    Complexity: linear in the nodes and edges.
    """
    nodes = ByteWriter()
    numbers: dict[object, int] = {}
    by_id: dict[int, int] = {}
    if not with_entries:
        grammar.digest  # noqa: B018  of all nodes, in one pass
    for node in ir.postorder(grammar):
        key: object = id(node) if with_entries else node.digest
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(numbers)
            nodes.at, nodes.numbers = number, by_id
            kind, fields = _FORMS[type(node)]
            nodes.number(kind)
            for name, field in zip(node._fields, fields, strict=True):
                field.write(nodes, getattr(node, name))
            if with_entries and isinstance(node, Described):
                _write_entries(nodes, node.description.entries)
        by_id[id(node)] = number
    payload = ByteWriter()
    payload.number(len(numbers))
    payload.number(int(with_entries))
    return sealed(_MAGIC, VERSION, bytes(payload.data + nodes.data))


def unpack(data: bytes, limits: Limits | None = None) -> Grammar:
    """Read a term that ``pack`` wrote, by default within ``Limits()``.

    Raises:
        ArgumentError: ``data`` is not bytes.
        GrammarError: other data, damaged or cut data, or data of a newer version.
        LimitExceeded: more bytes than ``limits.source_bytes``, or nodes than ``limits.grammar_nodes``.

    Complexity: linear in the bytes.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        remedy = "pass what to_bytes() returned"
        raise ArgumentError("Grammar.from_bytes", "expected bytes", evidence=found(data), remedy=remedy)
    data, limits = bytes(data), limits or Limits()
    if len(data) > limits.source_bytes:
        raise LimitExceeded(
            _SUBJECT, limit="source_bytes", maximum=limits.source_bytes, evidence=f"it has {len(data)} bytes"
        )
    reader = ByteReader(unsealed(data, _MAGIC, VERSION, _SUBJECT))
    try:
        count, has_entries = reader.number(), reader.number()
        if count > limits.grammar_nodes:
            raise LimitExceeded(
                _SUBJECT, limit="grammar_nodes", maximum=limits.grammar_nodes, evidence=f"it has {count} nodes"
            )
        if has_entries > 1:
            raise ValueError(f"flag {has_entries}")
        made = reader.nodes
        for _ in range(count):
            made.append(_read_node(reader, has_entries=has_entries == 1))
        if not made or reader.at != len(reader.data):
            raise ValueError(f"{len(reader.data) - reader.at} bytes after {count} nodes")
    except LimitExceeded:
        raise
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        evidence = f"at byte {reader.at} of its payload: {error}"
        raise GrammarError(_SUBJECT, "it is damaged", evidence=evidence, remedy=_DAMAGED) from None
    return made[-1]


def _read_node(reader: ByteReader, *, has_entries: bool) -> Grammar:
    kind = reader.number()
    made_as = _KINDS.get(kind)
    if made_as is None:
        raise ValueError(f"no node has kind {kind}")
    node_type, fields = made_as
    values = [field.read(reader) for field in fields]
    if node_type is Described and has_entries:
        source, policies, value = values[1].source, values[1].policies, values[1].value
        values[1] = Description(source, _read_entries(reader), policies, value)
    node: Grammar = node_type(*values)
    return node


class ByteWriter:
    """Bytes that grow by numbers, texts and references to nodes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.at = 0  # the number of the node that is written
        self.numbers: dict[int, int] = {}  # of each node written before, by its id

    def number(self, value: int) -> None:
        """Add a number that is not negative.

        Raises:
            GrammarError: it has more than 448 bits.
        """
        if value.bit_length() > _MAX_NUMBER_BITS:
            raise GrammarError(
                "grammar",
                f"a number of {value.bit_length()} bits cannot be saved",
                remedy=f"use numbers of at most {_MAX_NUMBER_BITS} bits",
            )
        while value > 0x7F:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def bytes(self, value: bytes) -> None:
        """Add bytes, their length first."""
        self.number(len(value))
        self.data += value

    def text(self, value: str) -> None:
        """Add a text, which may have lone surrogates."""
        self.bytes(value.encode("utf-8", "surrogatepass"))

    def term(self, value: Grammar) -> None:
        """Add a reference to a node that was written before."""
        self.number(self.at - self.numbers[id(value)])


class ByteReader:
    """Reads what a ``ByteWriter`` wrote.

    Its methods raise ValueError or IndexError where the data cannot be from one.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data
        self.at = 0
        self.nodes: list[Grammar] = []

    def number(self) -> int:
        """Read a number."""
        byte = self.data[self.at]
        self.at += 1
        if byte < 0x80:
            return byte
        value, shift = byte & 0x7F, 7
        while byte > 0x7F:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > _MAX_NUMBER_BITS + 7:
                raise ValueError("a number without an end")
        return value

    def bytes(self) -> bytes:
        """Read bytes."""
        length = self.number()
        end = self.at + length
        if end > len(self.data):
            raise ValueError(f"{length} bytes reach beyond the end")
        value = bytes(self.data[self.at : end])
        self.at = end
        return value

    def text(self) -> str:
        """Read a text."""
        return self.bytes().decode("utf-8", "surrogatepass")

    def term(self) -> Grammar:
        """Read a reference to a node."""
        back = self.number()
        if not 1 <= back <= len(self.nodes):
            raise ValueError(f"a node {back} before node {len(self.nodes)}")
        return self.nodes[-back]


@dataclass(frozen=True, slots=True)
class _Field:
    """How one field of a node is written and read."""

    write: Callable[[ByteWriter, Any], None]
    read: Callable[[ByteReader], Any]


def _many(one: _Field) -> _Field:
    def write(to: ByteWriter, values: Sequence[Any]) -> None:
        to.number(len(values))
        for value in values:
            one.write(to, value)

    def read(reader: ByteReader) -> tuple[Any, ...]:
        return tuple([one.read(reader) for _ in range(reader.number())])  # each takes a byte at least

    return _Field(write, read)


def _pair(first: _Field, second: _Field) -> _Field:
    def write(to: ByteWriter, pair: tuple[Any, Any]) -> None:
        first.write(to, pair[0])
        second.write(to, pair[1])

    return _Field(write, lambda reader: (first.read(reader), second.read(reader)))


def _one_of(values: tuple[object, ...]) -> _Field:
    def read(reader: ByteReader) -> object:
        index = reader.number()
        if index >= len(values):
            raise ValueError(f"choice {index} of {len(values)}")
        return values[index]

    return _Field(lambda to, value: to.number(values.index(value)), read)


def _write_bound(to: ByteWriter, value: int | None) -> None:
    to.number(0 if value is None else value + 1)


def _read_bound(reader: ByteReader) -> int | None:
    number = reader.number()
    return number - 1 if number else None


def _write_ranges(to: ByteWriter, ranges: Sequence[tuple[int, int]]) -> None:
    to.number(len(ranges))
    end = 0
    for low, high in ranges:
        to.number(low - end)
        to.number(high - low)
        end = high


def _read_ranges(reader: ByteReader) -> tuple[tuple[int, int], ...]:
    ranges = []
    end = 0
    for _ in range(reader.number()):
        low = end + reader.number()
        end = low + reader.number()
        ranges.append((low, end))
    return tuple(ranges)


def _write_token(to: ByteWriter, token: str | int) -> None:
    """A text, or an id: twice its value, or twice its negative value less one."""
    if isinstance(token, str):
        to.number(0)
        to.text(token)
    else:
        to.number(1)
        to.number(2 * token if token >= 0 else -2 * token - 1)


def _read_token(reader: ByteReader) -> str | int:
    if _FLAG.read(reader):
        number = reader.number()
        return -(number + 1 >> 1) if number & 1 else number >> 1
    return reader.text()


def _write_tokens(to: ByteWriter, tokens: Sequence[str | int | tuple[int, int]]) -> None:
    _TEXTS.write(to, [token for token in tokens if isinstance(token, str)])
    ids = [token for token in tokens if not isinstance(token, str)]
    _write_ranges(to, [(token, token) if isinstance(token, int) else token for token in ids])


def _write_number(to: ByteWriter, value: float) -> None:
    to.data += struct.pack("<d", value)


def _read_number(reader: ByteReader) -> float:
    if reader.at + 8 > len(reader.data):
        raise ValueError("a number reaches beyond the end")
    (value,) = struct.unpack_from("<d", reader.data, reader.at)
    reader.at += 8
    if not math.isfinite(value):
        raise ValueError(f"the number {value}")
    return float(value)


def _read_rules(reader: ByteReader) -> tuple[tuple[str, Grammar], ...]:
    rules: tuple[tuple[str, Grammar], ...] = _many(_pair(_TEXT, _TERM)).read(reader)
    if len(dict(rules)) != len(rules):  # found here: naming the rules of untrusted bytes could take quadratic time
        raise ValueError("a rule is bound twice")
    return rules


def _write_description(to: ByteWriter, value: Description) -> None:
    to.text(value.source)
    _POLICIES.write(to, value.policies)
    to.text(value.value)


def _read_description(reader: ByteReader) -> Description:
    source, policies, value = reader.text(), _POLICIES.read(reader), reader.text()
    return Description(source, (), policies, value)


def _write_entries(to: ByteWriter, entries: Sequence[ReportEntry]) -> None:
    to.number(len(entries))
    for entry in entries:
        to.text(entry.keyword)
        to.text(entry.where)
        _STATUS.write(to, entry.status)
        to.text(entry.detail)


def _read_entries(reader: ByteReader) -> tuple[ReportEntry, ...]:
    return tuple(
        [ReportEntry(reader.text(), reader.text(), _STATUS.read(reader), reader.text()) for _ in range(reader.number())]
    )


_COUNT: Final = _Field(ByteWriter.number, ByteReader.number)
_BOUND: Final = _Field(_write_bound, _read_bound)
_FLAG: Final = _one_of((False, True))
_DATA: Final = _Field(ByteWriter.bytes, ByteReader.bytes)
_TEXT: Final = _Field(ByteWriter.text, ByteReader.text)
_TEXTS: Final = _many(_TEXT)
_TERM: Final = _Field(ByteWriter.term, ByteReader.term)
_TERMS: Final = _many(_TERM)
_RANGES: Final = _Field(_write_ranges, _read_ranges)
_TOKEN: Final = _Field(_write_token, _read_token)
_TOKENS: Final = _Field(_write_tokens, lambda reader: (*_TEXTS.read(reader), *_read_ranges(reader)))
_RULES: Final = _Field(_many(_pair(_TEXT, _TERM)).write, _read_rules)
_NUMBER: Final = _Field(_write_number, _read_number)
_LABEL: Final = _one_of(("a-label", "bidi", "u-label"))
_POLICIES: Final = _many(_pair(_TEXT, _TEXT))
_STATUS: Final = _one_of((Status.ENFORCED, Status.CHECKED, Status.REFUSED, Status.ANNOTATION))
_DESCRIPTION: Final = _Field(_write_description, _read_description)

_FORMS: Final[NodeTable[tuple[int, tuple[_Field, ...]]]] = NodeTable(
    "packing",
    {  # the number of a kind, which never changes, and how each of the node's ``_fields`` is written
        ir.Literal: (1, (_DATA,)),
        ir.ByteClass: (2, (_RANGES,)),
        ir.CharClass: (3, (_RANGES,)),
        ir.Sequence: (4, (_TERMS,)),
        ir.Choice: (5, (_TERMS,)),
        ir.Repeat: (6, (_TERM, _COUNT, _BOUND)),
        ir.Permutation: (7, (_TERMS, _TERMS, _TERM, _TERM, _COUNT, _BOUND)),
        ir.Intersection: (8, (_TERMS,)),
        ir.Complement: (9, (_TERM,)),
        ir.Reference: (10, (_TEXT,)),
        ir.Rules: (11, (_RULES, _TERM)),
        ir.Capture: (12, (_TEXT, _TERM)),
        ir.Budget: (13, (_TERM, _BOUND, _BOUND)),
        ir.Tempered: (14, (_TERM, _NUMBER)),
        ir.Shared: (15, (_TERM,)),
        ir.SpecialToken: (16, (_TOKEN, _FLAG)),
        ir.TokenSet: (17, (_TOKENS, _FLAG)),
        ir.JsonString: (18, (_TERM,)),
        ir.Distinct: (19, (_TERM, _FLAG, _FLAG)),
        ir.Label: (20, (_TERM, _LABEL)),
        Described: (21, (_TERM, _DESCRIPTION)),
    },
)
_KINDS: Final = {kind: (node_type, fields) for node_type, (kind, fields) in _FORMS.items()}
