"""The formats of a structural tag as terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeAlias

from structgen_kernels import _native

from structgen.errors import GrammarError, LimitExceeded, UnsupportedFeature, found, some
from structgen.frontends.free_text import dispatched, text_of
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.frontends.json_schema.excluded_texts import without_texts
from structgen.frontends.structural_tag.place import LEGACY, SUBJECT, End, Place, placed, with_whitespace
from structgen.frontends.structural_tag.tags import Tags, by_trigger, check_patterns
from structgen.grammar import nodes as ir
from structgen.grammar.limits import Limits, spend
from structgen.grammar.nodes import EPSILON, Grammar
from structgen.grammar.nodes.description import Described
from structgen.grammar.visitor import Call, trampoline

__all__ = ["Note", "read"]

Note: TypeAlias = tuple[str, str, str]
"""An entry of the report: its name, its JSON Pointer, and a note."""

_FORMAT_STEPS: Final = 20


def read(given: Any, policy: JsonPolicy, limits: Limits) -> tuple[Grammar, list[Note], int]:
    """Read a tag as a value of JSON; without recursion.

    Returns:
        the term, a note of each format, and what the program of the term takes at least, in bytes.
    """
    reader = _Reader(policy, limits)
    term = trampoline(reader.whole(given))
    return term, reader.notes, sum(plain.memory_bytes for plain in reader.plain.values())


class _Reader:
    """Reads the formats of one tag; the methods that read formats inside are calls for ``trampoline``."""

    def __init__(self, policy: JsonPolicy, limits: Limits) -> None:
        self.policy = policy
        self.limits = limits
        self.notes: list[Note] = []
        self.plain: dict[int, _native.SimpleTerms] = {}
        self._ends: dict[str | tuple[str, ...], tuple[Grammar, End]] = {}

    def note(self, keyword: str, where: str, detail: str = "") -> None:
        self.notes.append((keyword, where, detail))

    def whole(self, given: Any) -> Call[Grammar]:
        """The whole tag, of either form."""
        if isinstance(given, dict):
            kind = given.get("type", "structural_tag")
            if kind != "structural_tag":
                raise GrammarError(
                    f"{SUBJECT} #/type",
                    "the type of the outermost object is 'structural_tag'",
                    evidence=found(kind),
                    remedy='write {"type": "structural_tag", "format": ...} around a format',
                )
            if LEGACY in given:
                return self.legacy(Place.of(given, "#", self.limits, default="legacy structural tag"))
        outer = Place.of(given, "#", self.limits, default=SUBJECT)
        made: Grammar = yield self.format(outer.inner(self.limits, "format"))
        return made

    def legacy(self, place: Place) -> Grammar:
        self.note(LEGACY, f"#/{LEGACY}", "read as triggered_tags")
        tags = list(place.listed(self.limits, LEGACY, default="structure"))
        contents: list[Grammar] = []
        for tag in tags:
            self.note("schema", f"{tag.pointer}/schema")
            contents.append(self.schema(tag, "schema", self.policy))
        groups = by_trigger(place, self.stops(place), [tag.value["begin"] for tag in tags], tags.__getitem__)
        return self.triggered(place, groups, contents, [self.end(tag) for tag in tags])

    def leaf(self, place: Place) -> Grammar | None:
        """Note a format, and read it if none can be inside."""
        spend(_FORMAT_STEPS, lambda: f"{SUBJECT} {place.pointer}")
        self.notes.append((place.type, place.pointer, ""))
        leaf = _LEAVES.get(place.type)
        return None if leaf is None else leaf(self, place)

    def format(self, place: Place) -> Call[Grammar]:
        term = self.leaf(place)
        return (yield _COMPOSED[place.type](self, place)) if term is None else term

    def formats(self, places: Iterable[Place]) -> Call[list[Grammar]]:
        made: list[Grammar] = []
        for place in places:
            term = self.leaf(place)  # most are leaves, which need no suspended call
            made.append((yield _COMPOSED[place.type](self, place)) if term is None else term)
        return made

    def const_string(self, place: Place) -> Grammar:
        return ir.literal(place.value["value"])

    def any_text(self, place: Place) -> Grammar:
        tokens, characters = place.count("max_tokens"), place.count("max_chars")
        if tokens == 0 or characters == 0:
            return EPSILON
        term = text_of(self.stops(place))
        return term if tokens is None and characters is None else ir.Budget(term, tokens, characters)

    def regex(self, place: Place) -> Grammar:
        from structgen.frontends.regex import regex

        with _refused_at(place, "pattern", "the regular expression"):
            return regex(place.value["pattern"], dialect="ecma", flags="s", limits=self.limits)

    def grammar(self, place: Place) -> Grammar:
        from structgen.frontends.bnf import ebnf

        with _refused_at(place, "grammar", "the grammar"):
            return ebnf(place.value["grammar"], limits=self.limits)

    def schema(self, place: Place, name: str, policy: JsonPolicy) -> Grammar:
        try:
            term = json_schema(place.value[name], policy=policy, limits=self.limits)
        except (GrammarError, LimitExceeded) as error:
            raise place.refused(error, name, "the JSON Schema") from error
        return self.placed(term, f"{place.pointer}/{name}")

    def placed(self, term: Grammar, pointer: str) -> Grammar:
        """The term of a schema at its place."""
        plain = term.plain if isinstance(term, Described) else None
        if isinstance(plain, _native.SimpleTerms):
            self.plain[id(plain)] = plain  # equal schemas are one
        return placed(term, pointer)

    def json_schema(self, place: Place) -> Grammar:
        style = place.value.get("style", "json")
        if style != "json":
            return self.arguments(place, style)
        policy, most = self.policy, place.count("max_whitespace_cnt")
        if place.flag("any_order"):
            policy = replace(policy, order="any")
        if most is not None:
            policy = with_whitespace(policy, most)
        term = self.schema(place, "json_schema", policy)
        excludes = self.excludes(place)
        if excludes:
            where = f"{place.pointer}/excludes"
            term = without_texts(term, excludes, f"{SUBJECT} {where}", where)
        return term

    def excludes(self, place: Place) -> tuple[str, ...]:
        """Texts that names and strings of a schema must not contain."""
        excludes = place.texts("excludes")
        if excludes:
            self.note("excludes", f"{place.pointer}/excludes", "in names and texts, as they are spelled")
        return excludes

    def arguments(self, place: Place, style: str = "qwen_xml") -> Grammar:
        """Arguments that are not written as JSON."""
        from structgen.frontends.xml_arguments import STYLES, xml_arguments

        if style not in STYLES:
            raise UnsupportedFeature(
                f"{SUBJECT} {place.pointer}/style",
                f"style {style}",
                where=f"{place.pointer}/style",
                problem=f"there is no style {style!r:.60}",
                remedy=f"there are {', '.join(sorted({'json', *STYLES}))}",
            )
        excludes = self.excludes(place)
        with _refused_at(place, "json_schema", "the JSON Schema"):
            term = xml_arguments(
                place.value["json_schema"],
                style,
                any_order=place.flag("any_order"),
                whitespace=place.count("max_whitespace_cnt"),
                policy=self.policy,
                limits=self.limits,
                excludes=excludes,
            )
        return self.placed(term, f"{place.pointer}/json_schema")

    def token(self, place: Place) -> Grammar:
        return ir.TokenSet([_named(place.value["token"])])

    def exclude_token(self, place: Place) -> Grammar:
        return ir.TokenSet([*place.tokens("exclude_tokens"), *place.end.tokens], is_excluded=True)

    def any_tokens(self, place: Place) -> Grammar:
        return ir.Repeat(self.exclude_token(place), 0, place.count("max_tokens"))

    def sequence(self, place: Place) -> Call[Grammar]:
        return ir.sequence(*(yield self.formats(place.listed(self.limits, "elements"))))

    def either(self, place: Place) -> Call[Grammar]:
        return ir.choice(*(yield self.formats(place.listed(self.limits, "elements"))))

    def repeated(self, place: Place) -> Call[Grammar]:
        least, most = _BOUNDS.get(place.type) or (place.count("min") or 0, place.count("max"))
        if most == -1:
            most = None
        if least < 0 or (most is not None and most < least):
            raise place.wrong(
                "the bounds contain no number of times",
                evidence=f"min is {least}, max is {most}",
                remedy="give 0 <= min <= max, or max -1 for no bound",
            )
        return ir.Repeat((yield self.format(place.inner(self.limits, "content"))), least, most)

    def tag(self, place: Place) -> Call[Grammar]:
        begin = place.value["begin"]
        start = ir.literal(begin) if isinstance(begin, str) else self.token(self.edge(place, "begin"))
        return ir.sequence(start, (yield self.format(self.content(place))), self.end(place))

    def edge(self, place: Place, name: str) -> Place:
        """The token that begins or ends a tag."""
        return place.inner(self.limits, name, default="token")

    def end(self, place: Place) -> Grammar:
        end = place.value["end"]
        return self.token(self.edge(place, "end")) if isinstance(end, dict) else self._end_of(end)[0]

    def content(self, place: Place) -> Place:
        """The content between the begin and the end of a tag."""
        end = place.value["end"]
        if isinstance(end, dict):
            stop = End(tokens=(_named(self.edge(place, "end").value["token"]),))
        else:
            stop = self._end_of(end)[1]
        return place.inner(self.limits, "content", end=stop)

    def _end_of(self, given: str | Sequence[str]) -> tuple[Grammar, End]:
        """The end of a tag that ends with one of some texts, and what its content does not hold."""
        key = given if isinstance(given, str) else tuple(given)
        made = self._ends.get(key)  # most tags end alike
        if made is None:
            texts = tuple(dict.fromkeys([key] if isinstance(key, str) else key))
            made = self._ends[key] = ir.choice(*texts), End(texts=tuple(filter(None, texts)))
        return made

    def contents(self, tags: Iterable[Place]) -> Iterator[Place]:
        for tag in tags:
            self.note("tag", tag.pointer)
            yield self.content(tag)

    def contents_of(self, tags: Tags) -> Call[list[Grammar]]:
        """The contents of all tags; those of plain ones are read together."""
        made: list[Grammar] = []
        for at, term in enumerate(tags.plain_contents(self.policy)):
            if term is None:
                made += yield self.formats(self.contents((tags.place(at),)))
                continue
            pointer = tags.pointer(at)
            spend(_FORMAT_STEPS, SUBJECT)
            self.notes += ("tag", pointer, ""), ("json_schema", f"{pointer}/content", "")
            made.append(self.placed(term, f"{pointer}/content/json_schema"))
        return made

    def separated(self, place: Place) -> Call[Grammar]:
        tags = list(place.listed(self.limits, "tags", default="tag"))
        one = ir.choice(*(yield self.formats(tags)))
        most = 1 if place.flag("stop_after_first") else None
        separator = place.value["separator"]
        least = int(place.flag("at_least_one"))
        return one.many(least, most, sep=separator) if separator else ir.Repeat(one, least, most)

    def stops(self, place: Place) -> tuple[str, ...]:
        """Texts that free text must not contain here."""
        return tuple(dict.fromkeys([*place.texts("excludes"), *place.end.texts]))

    def triggered_tags(self, place: Place) -> Call[Grammar]:
        tags = Tags(place, self.limits)
        groups = by_trigger(place, self.stops(place), [tags.field(at, "begin") for at in range(len(tags))], tags.place)
        contents = yield self.contents_of(tags)
        return self.triggered(place, groups, contents, [self.end_of(tags, at) for at in range(len(tags))])

    def end_of(self, tags: Tags, at: int) -> Grammar:
        end = tags.field(at, "end")
        return self.end(tags.place(at)) if isinstance(end, dict) else self._end_of(end)[0]

    def triggered(
        self,
        place: Place,
        groups: Mapping[str, Sequence[tuple[int, str]]],
        contents: Sequence[Grammar],
        ends: Sequence[Grammar],
    ) -> Grammar:
        """Free text with tags, from the tags of each trigger."""

        def tags(prefix: str, members: Iterable[tuple[int, str]]) -> list[Grammar]:
            return [_around(prefix + rest, contents[at], ends[at]) for at, rest in members]

        must, once = place.flag("at_least_one"), place.flag("stop_after_first")
        first = [tag for trigger, members in groups.items() for tag in tags(trigger, members)] if must else []
        if must and once:
            return ir.choice(*first)
        rules = [(trigger, ir.choice(*tags("", members))) for trigger, members in groups.items()]
        text = dispatched(rules, self.stops(place), loop=not once)
        return ir.sequence(ir.choice(*first), text) if must else text

    def dispatch(self, place: Place) -> Call[Grammar]:
        rules = place.value["rules"]
        stops = place.texts("excludes")  # what ends a tag around it is none, in xgrammar too
        patterns = [pattern for pattern, _ in rules]
        check_patterns(place, [("rules", at, 0) for at in range(len(rules))], patterns, stops)
        contents = yield self.formats(self.of_rules(place))
        return dispatched(list(zip(patterns, contents, strict=True)), stops, loop=place.flag("loop", default=True))

    def of_rules(self, place: Place) -> Iterator[Place]:
        return (place.inner(self.limits, "rules", at, 1) for at in range(len(place.value["rules"])))

    def token_triggered_tags(self, place: Place) -> Call[Grammar]:
        triggers = place.tokens("trigger_tokens")
        tags = list(place.listed(self.limits, "tags", default="tag"))
        begins: list[str | int] = []
        for tag in tags:
            if isinstance(tag.value["begin"], str):
                raise tag.wrong("a text begins it", "begin", remedy="begin it with a token, or use triggered_tags")
            begins.append(_named(self.edge(tag, "begin").value["token"]))
            if begins[-1] not in triggers:
                raise tag.wrong(
                    "the token that begins it is no trigger",
                    "begin",
                    evidence=f"it is {begins[-1]!r:.60}, the triggers are {some(triggers)}",
                    remedy="name a token in the same way in both places",
                )
        for at, trigger in enumerate(triggers):
            if trigger not in begins:
                raise place.wrong(
                    "no tag begins with the token", "trigger_tokens", at, evidence=found(trigger), remedy="leave it out"
                )
        contents = yield self.formats(self.contents(tags))
        rests = [ir.sequence(content, self.end(tag)) for content, tag in zip(contents, tags, strict=True)]
        must, once = place.flag("at_least_one"), place.flag("stop_after_first")
        rules = list(zip(begins, rests, strict=True))
        first = ir.choice(*(ir.sequence(ir.TokenSet([token]), rest) for token, rest in rules))
        if must and once:
            return first
        text = self.token_dispatched(place, rules, "trigger_tokens", place.end.tokens, loop=not once)
        return ir.sequence(first, text) if must else text

    def token_dispatch(self, place: Place) -> Call[Grammar]:
        tokens = [_named(token) for token, _ in place.value["rules"]]
        contents = yield self.formats(self.of_rules(place))
        rules = list(zip(tokens, contents, strict=True))
        return self.token_dispatched(place, rules, "rules", (), loop=place.flag("loop", default=True))

    def token_dispatched(
        self,
        place: Place,
        rules: Sequence[tuple[str | int, Grammar]],
        name: str,
        ends: Sequence[str | int],
        *,
        loop: bool,
    ) -> Grammar:
        """Free tokens, in which a token of a rule is followed by what the rule says."""
        excluded = [*place.tokens("exclude_tokens"), *ends]
        both = next((token for token, _ in rules if token in excluded), None)
        if both is not None:
            raise place.wrong(
                "a token is excluded that a part begins with", name, evidence=found(both), remedy="exclude another one"
            )
        free = ir.Repeat(ir.TokenSet([*(token for token, _ in rules), *excluded], is_excluded=True), 0, None)
        parts = [ir.sequence(free, ir.TokenSet([token]), rest) for token, rest in rules]
        return ir.sequence(ir.Repeat(ir.choice(*parts), 0, None), free) if loop else ir.choice(*parts, free)


_BOUNDS: Final = {"optional": (0, 1), "star": (0, None), "plus": (1, None)}
_LEAVES: Final[Mapping[str, Callable[[_Reader, Place], Grammar]]] = {
    "const_string": _Reader.const_string,
    "json_schema": _Reader.json_schema,
    "qwen_xml_parameter": _Reader.arguments,
    "any_text": _Reader.any_text,
    "token": _Reader.token,
    "exclude_token": _Reader.exclude_token,
    "any_tokens": _Reader.any_tokens,
    "grammar": _Reader.grammar,
    "regex": _Reader.regex,
}
_COMPOSED: Final[Mapping[str, Callable[[_Reader, Place], Call[Grammar]]]] = {
    "sequence": _Reader.sequence,
    "or": _Reader.either,
    "optional": _Reader.repeated,
    "star": _Reader.repeated,
    "plus": _Reader.repeated,
    "repeat": _Reader.repeated,
    "tag": _Reader.tag,
    "triggered_tags": _Reader.triggered_tags,
    "token_triggered_tags": _Reader.token_triggered_tags,
    "tags_with_separator": _Reader.separated,
    "dispatch": _Reader.dispatch,
    "token_dispatch": _Reader.token_dispatch,
}


def _around(begin: str, content: Grammar, end: Grammar) -> Grammar:
    """``ir.sequence``; at once where nothing is to be spliced or joined."""
    if begin and content.__class__ is Described and end.__class__ is ir.Literal and end is not EPSILON:
        return ir.sequence_of((ir.literal(begin), content, end))
    return ir.sequence(begin, content, end)


def _named(token: str | float) -> str | int:
    return token if isinstance(token, str) else int(token)


@contextmanager
def _refused_at(place: Place, name: str, what: str) -> Iterator[None]:
    try:
        yield
    except (GrammarError, LimitExceeded) as error:
        raise place.refused(error, name, what) from error
