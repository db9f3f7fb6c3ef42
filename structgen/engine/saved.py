"""Constraints in files: what ``Constraint.save`` writes and ``Constraint.load`` reads.

    data    = magic version sum payload                                see ``grammar/packing.py``
    payload = vocabulary-digest vocabulary-size {limit value} stamp program grammar

``program`` is the flat program that the native engine builds its terms from, left recursion removed, with the length of
the shortest string of each rule: checking that these lengths agree takes less than finding them.  Building the terms is
all that remains of compiling; automata and masks are always made on demand.  ``stamp`` says for which engine it is:
another one ignores it and compiles the grammar.  Grammars with special tokens have no program and are compiled, too.
``grammar`` is compressed, and is read on first use.

``sum`` is a CRC-32 over version and payload; version 1 had BLAKE2b (16 bytes) instead.

Files are not trusted: what is read is checked, and bounded by ``Limits``.  The sum is no signature, so whoever writes a
file decides what its constraint allows, and may make program and grammar differ.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from structgen_kernels import _native

from structgen.errors import GrammarError, LimitExceeded, VocabularyError
from structgen.grammar import nodes as ir
from structgen.grammar.flattening import flatten
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Description
from structgen.grammar.packing import ByteReader, ByteWriter, pack, sealed, unpack, unsealed

if TYPE_CHECKING:
    from os import PathLike


__all__ = ["read_constraint", "write_constraint"]

_VERSION: Final = 2
_SUMMED_FROM: Final = 2
_MAGIC: Final = b"structgen constraint\n"
_SUBJECT: Final = "saved constraint"
_MAX_BYTES: Final = 256 << 20
"""Of a file, and of a grammar before it is compressed."""
_MAX_NODES: Final = 4_000_000
_PROGRAM_VERSION: Final = b"1"
"""To be counted up where an instruction of a flat program gets another meaning; its form is in the stamp anyway."""


@cache
def _stamp() -> bytes:
    """Content hash of the programs of this engine: that of the program of a term with every kind of instruction."""
    a, b = ir.Literal(b"a"), ir.CharClass([(0x61, 0x7A), (0x400, 0x4FF)])
    items = ir.Permutation([a], [ir.JsonString(b)], ir.ByteClass([(0x30, 0x39)]), ir.Literal(b","), 1, 4)
    parts = [
        ir.Distinct(ir.Shared(items), is_spare=True),
        ir.Label(ir.Choice([ir.Reference("r"), ir.Complement(b)])),
        ir.Budget(ir.Intersection([ir.Repeat(b, 1, 3), b]), tokens=5, characters=4),
        ir.Tempered(ir.Capture("c", a), 0.5),
    ]
    probe = ir.Rules({"r": ir.Sequence([a, ir.Repeat(ir.Reference("r"), 0, None)])}, ir.Sequence(parts))
    program = flatten(probe, {}, None, 1_000).to_bytes()
    return hashlib.blake2b(program, digest_size=16, person=_PROGRAM_VERSION).digest()


def write_constraint(
    path: str | PathLike[str],
    grammar: Grammar,
    program: tuple[_native.FlatGrammar, list[int]],
    limits: Limits,
    *,
    digest: bytes,
    size: int,
) -> None:
    """Write a constraint to a file, with digest and size of its vocabulary; see ``Constraint.save``.

    ``program`` comes with the distances of its rules.
    """
    try:
        flat = program[0].to_bytes(program[1])
    except ValueError:  # it names tokens
        flat = b""
    packed = pack(grammar, with_entries=True)
    if max(len(packed), len(flat)) > _MAX_BYTES // 2:
        raise GrammarError(
            "grammar",
            "it is too large for a file",
            evidence=f"it takes {len(packed)} bytes, and its program {len(flat)}",
            remedy="compile it where it is used",
        )
    payload = ByteWriter()
    payload.bytes(digest)
    payload.number(size)
    payload.number(len(fields(limits)))
    for field in fields(limits):
        payload.text(field.name)
        payload.number(getattr(limits, field.name))
    payload.bytes(_stamp() if flat else b"")
    payload.bytes(flat)
    payload.bytes(zlib.compress(packed))
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.writing")
    try:
        beside.write_bytes(sealed(_MAGIC, _VERSION, bytes(payload.data), summed_from=_SUMMED_FROM))
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def read_constraint(
    path: str | PathLike[str], limits: Limits | None, *, digest: bytes, size: int
) -> tuple[Grammar, Limits]:
    """Read the grammar to compile, and its limits; see ``Constraint.load``.

    Returns:
        A ``Described`` term with the program as its ``plain`` form, whose item is the grammar, made on first use; or
        the grammar itself, where there is no program for this engine.  Then the limits, ``limits`` if they are given.
    """
    with Path(path).open("rb") as file:
        size_now = os.fstat(file.fileno()).st_size  # 0 of a pipe; room for the most bytes takes long to get
        data = file.read(min(size_now or _MAX_BYTES, _MAX_BYTES) + 1)
    if len(data) > _MAX_BYTES:
        raise _damaged(f"it has more than {_MAX_BYTES} bytes")
    reader = ByteReader(unsealed(data, _MAGIC, _VERSION, _SUBJECT, summed_from=_SUMMED_FROM))
    try:
        saved_digest, saved_size = reader.bytes(), reader.number()
        numbers = {reader.text(): reader.number() for _ in range(reader.number())}
        stamp, program, packed = reader.bytes(), reader.bytes(), reader.bytes()
        if reader.at != len(reader.data):
            raise ValueError(f"{len(reader.data) - reader.at} bytes are left")
        known = {field.name for field in fields(Limits)}
        bounds = replace(Limits(), **{name: number for name, number in numbers.items() if name in known})
    except (ValueError, IndexError) as error:
        raise _damaged(str(error)) from None
    if saved_digest != digest:
        raise VocabularyError(
            _SUBJECT,
            "it was saved for another vocabulary",
            evidence=f"that has {saved_size} tokens and digest {saved_digest.hex()}, this {size} and {digest.hex()}",
            remedy="load it with the vocabulary of its model, or compile the grammar for this one",
        )
    source = _SavedGrammar(packed)
    if not program or stamp != _stamp():
        return source.item(), limits or bounds
    try:
        flat = _native.FlatGrammar.from_bytes(program, (limits or bounds).grammar_nodes)
    except LimitExceeded:
        raise
    except ValueError as error:
        raise _damaged(str(error)) from None
    return Described.deferred(flat, source), limits or bounds


class _SavedGrammar:
    """A grammar that is read on first use."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def item(self) -> Grammar:
        """The grammar.

        Raises:
            GrammarError: it is damaged, which only a file with a forged sum is.
        """
        inflate = zlib.decompressobj()
        try:
            data = inflate.decompress(self._packed, _MAX_BYTES)
        except zlib.error as error:
            raise _damaged(str(error)) from None
        return unpack(data, Limits(source_bytes=_MAX_BYTES, grammar_nodes=_MAX_NODES))

    def description(self) -> Description:
        """That of a term without any, since the item has its own."""
        return Description("saved constraint")


def _damaged(evidence: str) -> GrammarError:
    return GrammarError(_SUBJECT, "it is damaged", evidence=evidence, remedy="save the constraint again")
