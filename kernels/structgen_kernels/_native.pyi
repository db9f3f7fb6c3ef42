"""Automaton engine of structgen: vocabulary trie, lazily derived automata, matcher and masks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

# An int32 array of numpy or a CPU tensor of torch, contiguous, [rows, ceil(V / 32)].
Bitmask = Any

def set_limit_error(type: Callable[[str, int, str], Exception]) -> None: ...
def set_argument_error(type: Callable[[str, str, object, int], Exception]) -> None: ...
def is_a_label(text: str, bidi: bool) -> bool: ...
def a_label_rest(text: str, bidi: bool) -> str | None: ...

# two digits and a scale for each row of x
def write_digits(x: Any, digits: Any, scales: Any) -> None: ...
def join_digits(products: Any, scales: Any) -> None: ...

class OwnAttention:
    # entries: float32 or float64 CPU tensors [layers, 2, heads, capacity, width]
    def __init__(
        self,
        key_value_heads: int,
        groups: int,
        parts: Sequence[tuple[int, int, Sequence[tuple[Any, int, int]], NDArray[np.bool_] | None]],
    ) -> None: ...
    def attend(self, layer: int, queries: Any, keys: Any, values: Any, output: Any, log_sums: Any) -> None: ...

class Limits:
    def __init__(self) -> None: ...
    @property
    def states(self) -> int: ...
    @states.setter
    def states(self, arg: int, /) -> None: ...
    @property
    def regular_states(self) -> int: ...
    @regular_states.setter
    def regular_states(self, arg: int, /) -> None: ...
    @property
    def steps(self) -> int: ...
    @steps.setter
    def steps(self, arg: int, /) -> None: ...
    @property
    def distance_steps(self) -> int: ...
    @distance_steps.setter
    def distance_steps(self, arg: int, /) -> None: ...
    @property
    def cache_bytes(self) -> int: ...
    @cache_bytes.setter
    def cache_bytes(self, arg: int, /) -> None: ...

class TokenTrie:
    def __init__(self, tokens: Sequence[bytes]) -> None: ...
    def to_bytes(self) -> bytes: ...
    @staticmethod
    def from_bytes(data: bytes) -> TokenTrie: ...
    def __len__(self) -> int: ...
    @property
    def node_count(self) -> int: ...
    @property
    def max_token_bytes(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def nodes(self) -> tuple[NDArray[np.uint8], NDArray[np.uint16], NDArray[np.uint32], NDArray[np.uint32]]:
        """Return byte and depth of each node in depth-first order, begin, and tokens.

        The tokens that end at node i are at ``[begin[i], begin[i + 1])`` of the last array.
        """
    @property
    def derived_limit(self) -> int: ...
    def drop_derived(self) -> None: ...

class Engine:
    def __init__(self, tokens: TokenTrie, vocabulary_size: int) -> None: ...
    @property
    def byte_complete(self) -> bool: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def statistics(self) -> dict[str, int]: ...
    def drop_rows(self) -> None: ...
    def pretend_wanted(self, waits: bool) -> None:
        """From now on as if one more thread waited for the engine, or as before: for tests."""

class FlatGrammar:
    """A grammar as a list of instructions, independent of any engine but for known terms."""

    @staticmethod
    def from_bytes(data: bytes, max_instructions: int = ...) -> FlatGrammar: ...
    def to_bytes(self, distances: Sequence[int] = ...) -> bytes: ...
    @property
    def size(self) -> int:
        """The number of instructions."""
    @property
    def memory_bytes(self) -> int: ...
    @property
    def rules(self) -> list[str]: ...
    @property
    def result(self) -> int: ...
    @property
    def instructions(self) -> list[tuple[int, bool, bytes | tuple[Any, ...], int, int, int]]: ...
    @property
    def shared(self) -> list[Any]: ...

class SimpleTerms:
    """The grammar of a simple JSON Schema, as a list of nodes."""

    def __len__(self) -> int: ...
    @property
    def unknown(self) -> list[str]:
        """Some names in the place of keywords that no specification knows."""
    @property
    def memory_bytes(self) -> int:
        """Not more than what they add to a program that has the leaves already."""

_Notation: TypeAlias = tuple[
    tuple[object, ...],
    tuple[tuple[int, object, object], ...],
    tuple[object, ...],
    str,
    str,
    tuple[str, str] | None,
    bool,
    bool,
]

class SimplePlanner:
    """Makes the terms of simple JSON Schemas of one dialect and policy."""

    def __init__(
        self,
        keywords: dict[str, int],
        reference_stands_alone: bool,
        syntax: Sequence[object],
        max_cost: int,
        max_depth: int,
        closes: bool = False,
        requires_all: bool = False,
        notation: _Notation | None = None,
        others: Sequence[str] = (),
    ) -> None: ...

_Planner = TypeVar(
    "_Planner", bound=tuple[SimplePlanner, Callable[[str], tuple[object, bool, bool] | None], object, object]
)

def json_text(value: object, max_depth: int, max_bytes: int) -> str | None: ...
def read_json(
    text: str,
    max_depth: int,
    make_number: Callable[[str], object],
    kept: Sequence[str] = (),
    keep: Callable[[str], object] | None = None,
) -> Any: ...
def plan_simple(
    text: str,
    max_depth: int,
    planners: Mapping[str | None, _Planner | None],
    add_planner: Callable[[str | None], _Planner | None],
) -> tuple[SimpleTerms, Any] | None: ...

class LarkReader:
    """Reads plain Lark grammars."""

    def __init__(
        self,
        library: Callable[[str], Sequence[str] | None],
        leaf: Callable[[str], tuple[FlatGrammar, bool] | None],
    ) -> None: ...
    def read(self, text: str, start: str, max_nodes: int, max_depth: int) -> FlatGrammar | None: ...

class Flattener:
    def __init__(self, classes: Sequence[type]) -> None: ...
    def flatten(
        self,
        grammar: object,
        known: dict[int, tuple[Any, int]],
        host: object,
        vocabulary: object,
        max_nodes: int,
        rewrite: Callable[[Any], object] | None,
    ) -> FlatGrammar: ...
    def untrack(self, term: object) -> None: ...

def couple(
    engine: Engine, grammar: FlatGrammar, eos: Sequence[int], limits: Limits, is_own: bool
) -> tuple[Constraint | None, list[int | None], bool, int | None, int | None, int] | None:
    """Compile a grammar; None if others wait for the engine, and it is not the grammar's own."""

def rule_distances(engine: Engine, grammar: FlatGrammar, limits: Limits) -> list[int] | None:
    """Return the length of the shortest string of each rule of a grammar; None if it is left-recursive."""

class Constraint:
    def limited(self, limits: Limits) -> Constraint:
        """Return the same constraint within other limits."""
    def set_elsewhere(self, make: Callable[[], Constraint | None]) -> None:
        """Set what compiles the grammar in a new engine, where its work would hold up others."""
    @property
    def has_moved(self) -> bool: ...
    @property
    def is_searched(self) -> bool: ...
    @property
    def has_reach(self) -> bool: ...
    @property
    def has_temperatures(self) -> bool: ...
    @property
    def has_token_sets(self) -> bool: ...
    @property
    def has_scope(self) -> bool: ...
    @property
    def has_budgets(self) -> bool: ...
    @property
    def has_budgets_in_scopes(self) -> bool: ...
    def is_completable(self) -> bool: ...
    @property
    def states_used(self) -> int: ...

class SearchLimit(Exception):
    """The search for a canonical completion takes too many steps; its text is how many tokens were tried."""

class TokenPairs:
    """Which tokens byte-pair encoding writes side by side; ``merges`` ``[n, 3]`` are two parts and what they make."""

    def __init__(
        self, tokens: int, merges: NDArray[np.int32], ranks: NDArray[np.int32], units: NDArray[np.int32]
    ) -> None: ...
    def reachable(self) -> NDArray[np.uint8]: ...
    def conflict(self, left: int, right: int) -> bool: ...

class Canonical:
    """Which tokens a tokenizer writes after which, by what ``tokenizer`` answers, and which a grammar can complete."""

    start: int
    def __init__(
        self,
        pairs: TokenPairs,
        tokenizer: object,
        kinds: NDArray[np.uint8],
        shapes: NDArray[np.int32],
        shape_begins: NDArray[np.int32],
        classes: NDArray[np.uint8],
        has_rest: NDArray[np.uint8],
        class_count: int,
        settled: NDArray[np.int32],
        single: NDArray[np.int32],
        by_length: NDArray[np.int32],
        harmless: bytes,
        has_rules: bool,
    ) -> None: ...
    @property
    def memory_bytes(self) -> int: ...
    def set_limit(self, bytes: int) -> None: ...
    def drop(self) -> None: ...
    def after(self, state: int, token: int) -> int: ...
    def may_end(self, state: int) -> bool: ...
    def mask(self, state: int, row: NDArray[np.int32]) -> None: ...
    def completes(self, matcher: Matcher, state: int, steps: int) -> bool: ...
    def follows(self, matcher: Matcher, state: int, token: int, steps: int) -> bool: ...
    def allowed(
        self, matcher: Matcher, state: int, is_completable: bool, most: int, steps: int, row: NDArray[np.int32]
    ) -> list[int] | None: ...
    def narrow(
        self, matcher: Matcher, state: int, is_completable: bool, most: int, steps: int, row: NDArray[np.int32]
    ) -> list[int] | None: ...
    def write_tokens(self, tokens: Sequence[int], row: NDArray[np.int32]) -> None: ...

class ChainSampler:
    def __init__(self, constraint: Constraint, budget: int | None = None) -> None: ...
    def wrap(self, init: int) -> int: ...
    @staticmethod
    def find(sampler: int) -> ChainSampler | None: ...
    @staticmethod
    def table() -> int: ...
    @staticmethod
    def living() -> int: ...
    def fault(self) -> tuple[str, list[int], int, int, bool, str] | None: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def is_accepting(self) -> bool: ...
    @property
    def is_terminated(self) -> bool: ...

class Matcher:
    @overload
    def __init__(self, constraint: Constraint) -> None: ...
    @overload
    def __init__(self, other: Matcher) -> None: ...
    def fill_mask(
        self,
        bitmask: Bitmask,
        row: int = 0,
        *,
        budget: int | None = None,
    ) -> None: ...
    def fill_mask_within(
        self,
        bitmask: Bitmask,
        row: int,
        budget: int,
    ) -> None: ...
    def needs_budget_mask(self, budget: int) -> bool: ...
    def accept(self, token_id: int) -> bool: ...
    def accept_bytes(self, data: bytes) -> int: ...
    def validate(self, token_ids: Sequence[int]) -> int: ...
    def validate_tree(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[bool]: ...
    def fill_mask_tree(
        self,
        token_ids: Sequence[int],
        parents: Sequence[int],
        bitmask: Bitmask,
        row: int = 0,
    ) -> list[bool]: ...
    def allowed_tokens(self, most: int) -> list[int]: ...
    def rollback(self, count: int) -> None: ...
    def reset(self) -> None: ...
    def replay(self, other: Matcher) -> None: ...
    def taken(self) -> list[int | bytes]: ...
    def forced_bytes(self) -> bytes: ...
    def uncertain_from(self, forced: bytes, starts: Sequence[int]) -> int: ...
    def min_tokens(self) -> int | None: ...
    def completes_within(self, budget: int) -> bool: ...
    def shortest_completion(self) -> list[int]: ...
    @property
    def is_accepting(self) -> bool: ...
    @property
    def is_terminated(self) -> bool: ...
    @property
    def history_length(self) -> int: ...
    @property
    def limit(self) -> int | None: ...
    @limit.setter
    def limit(self, limit: int | None) -> None: ...
    @property
    def state_id(self) -> int: ...
    @property
    def mask_id(self) -> int | None: ...
    def live_bytes(self) -> bytes: ...
    def temperature(self) -> float | None: ...
    def live_specials(self) -> list[int]: ...
    def rule_path(self) -> list[str]: ...

def fill_masks(
    matchers: Sequence[Matcher],
    bitmask: Bitmask,
) -> None: ...
def fill_mask_trees(
    matchers: Sequence[Matcher],
    trees: Sequence[tuple[Sequence[int], Sequence[int]]],
    bitmask: Bitmask,
) -> list[list[bool]]: ...

_Owner = TypeVar("_Owner")

class RowBuffer:
    def __init__(self, rows: Bitmask) -> None: ...
    def fill(self, matchers: Sequence[Matcher]) -> list[int]: ...
    def fill_owned(
        self, owners: dict[str, _Owner], keys: list[str], matcher_of: Callable[[_Owner], Matcher]
    ) -> list[int]: ...
    def forget(self) -> None: ...

_Int32 = NDArray[np.int32]
_UInt8 = NDArray[np.uint8]

def unfold(constraint: Constraint, most_states: int) -> tuple[_Int32, _UInt8, _Int32] | None:
    """Return transitions ``[states, 256]``, accepting states, and special edges ``[n, 3]``; None beyond the limit."""

def byte_automaton(
    constraint: Constraint, most_states: int, most_steps: int
) -> tuple[int, tuple[_UInt8, _Int32, _UInt8, _Int32] | None]:
    """Return the steps, and of the minimal automaton: kinds of bytes, transitions, accepting states, special edges.

    The kinds are ``[256]``, transitions ``[kinds, states]``, special edges ``[n, 3]``. None instead beyond a limit;
    that on states holds before they are minimised.
    """

def unfold_calls(constraint: Constraint, most_states: int) -> tuple[_Int32, _UInt8, _Int32, _Int32] | None:
    """Return transitions, final states, calls ``[n, 3]``, and special edges of the network; None beyond the limit."""

def counted_calls(
    constraint: Constraint, most_states: int, state_steps: int, most_steps: int
) -> tuple[int, tuple[_Int32, _UInt8, _Int32, _Int32] | None]:
    """Return the steps of ``unfold_calls``, which count ``state_steps`` for each state, and its result."""

def may_recur(constraint: Constraint) -> tuple[bool, int]:
    """Return whether some rule that its texts may call can call itself, and how many terms were looked at."""

def called_rules(constraint: Constraint, most_states: int) -> list[tuple[int, str]]:
    """Return the start of each rule that a state of ``unfold_calls`` calls, with its name."""

def token_classes(
    tokens: TokenTrie, vocabulary_size: int, kind_of: _UInt8, targets: _Int32, most_moves: int, most_steps: int
) -> tuple[int, tuple[_Int32, NDArray[np.uint32], _Int32, _Int32] | None]:
    """Return the steps, and the class of each token with the moves of the classes: begin, sources, targets.

    Beyond a limit, None in place of the tables.
    """

def token_effects(
    tokens: TokenTrie,
    vocabulary_size: int,
    next: _Int32,
    final: _UInt8,
    calls: _Int32,
    specials: _Int32,
    most_effects: int,
    most_steps: int,
) -> tuple[int, str, tuple[Any, ...] | None]:
    """Return the steps, what ended the call, and the effect of each token with the tables of effects.

    These are, for each effect, three lists of pairs (source, outcome), each as first times 2^32 plus second, each with
    the begins before it: outcomes that are one state, effects with which the caller goes on, and stacks. Then the stack
    below the top of each stack, -1 for none, and its top. Instead of the tables None, where "steps" or "effects" are
    more than allowed, or where there is "recursion" that reads nothing.
    """

def labelled_edges(moves: _Int32, states: int) -> tuple[_Int32, _Int32, _Int32, NDArray[np.int64], _Int32]:
    """Return source, target and label of the edges that moves (source, target, class) make, by source, then target.

    The classes of label k are at ``[begin[k], begin[k + 1])`` of the last array; the fourth is ``begin``.
    """

def equal_futures(next: _Int32, accepting: _UInt8, specials: _Int32) -> _Int32:
    """Return a number for each state of an automaton, equal for states of equal futures.

    ``next`` is where bytes of each of up to 256 kinds lead, ``[states, kinds]``.
    """

def row_maxima(logits: NDArray[np.float32]) -> NDArray[np.float32]: ...

class ClassLayout:
    def __init__(self, classes_of: _Int32, classes: int) -> None: ...
    def maxima(self, logits: NDArray[np.float32]) -> NDArray[np.float32]: ...
    def find(
        self, logits: NDArray[np.float32], rows: NDArray[np.int64], classes: _Int32, values: NDArray[np.float32]
    ) -> _Int32: ...
    def sums(
        self,
        logits: NDArray[np.float32],
        scale: float,
        largest: NDArray[np.float32],
        with_moments: bool = ...,
        with_maxima: bool = ...,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None, NDArray[np.float32] | None]: ...
    def draw(
        self,
        logits: NDArray[np.float32],
        scale: float,
        largest: NDArray[np.float32],
        sums: NDArray[np.float64],
        by_chunk: NDArray[np.float64],
        rows: NDArray[np.int64],
        classes: _Int32,
        uniform: NDArray[np.float64],
    ) -> _Int32: ...

class ChainEdges:
    @staticmethod
    def of(source: _Int32, target: _Int32, label: _Int32, final: _UInt8, labels: int) -> ChainEdges:
        """Take the edges of an automaton in the order of their sources, after checking them."""

class Chain:
    @staticmethod
    def of(edges: ChainEdges, weights: NDArray[np.float64], is_max: bool, max_steps: int) -> Chain:
        """Compute the backward messages of all reached states, for log weights ``[slots, labels]``."""

    @property
    def is_complete(self) -> bool:
        """Whether ``max_steps`` were enough; nothing else of another chain may be read but ``steps``."""

    @property
    def steps(self) -> int:
        """Elementary steps, but for those of ``forward`` and ``label_masses``."""

    @property
    def forward_steps(self) -> int:
        """The steps that each of these takes."""

    @property
    def total(self) -> float: ...
    def backward(self) -> NDArray[np.float64]: ...
    def forward(self) -> NDArray[np.float64]: ...
    def reached(self) -> _UInt8: ...
    def label_masses(self) -> NDArray[np.float64]: ...
    def run(self, uniform: NDArray[np.float64]) -> NDArray[np.int64]: ...

_Float64 = NDArray[np.float64]

def possible_runs(edges: ChainEdges, allowed: _UInt8, most_steps: int) -> tuple[int, _UInt8 | None, bool]:
    """Return the steps, which labels ``[slots, labels]`` some run to a final state has, and whether there is a run.

    ``allowed``: whether each slot may hold each label. Beyond the limit, None in place of the labels.
    """

def edge_distances(source: _Int32, target: _Int32, final: _UInt8) -> NDArray[np.uint32]:
    """Return the number of edges from each state to a final one; the largest number where there are none."""

def walk_lengths(
    source: _Int32,
    target: _Int32,
    share: _Float64,
    stop: _Float64,
    covered: float,
    multiple: int,
    most_slots: int,
    most_steps: int,
) -> tuple[int, tuple[int, int] | None]:
    """Return the steps, and the length by which ``covered`` of the walks from state 0 have stopped, and the longest.

    A walk takes an edge by its share, or stops at a state; edges are in the order of their sources. Lengths are at most
    ``most_slots``, and walks are followed only to the next multiple of ``multiple``. Beyond the limit on steps, None in
    place of the lengths.
    """

def label_scores(begin: NDArray[np.int64], classes: _Int32, scores: _Float64, is_max: bool) -> _Float64:
    """Return the log of the sum of exponentials of each label's classes, or the maximum, for each row of scores."""

def class_sums(begin: NDArray[np.int64], classes: _Int32, values: _Float64, number: int) -> _Float64:
    """Return the sums of what the labels have that contain each class, for each row of values of labels."""

class ChartPlan:
    @staticmethod
    def of(plan: Any) -> ChartPlan:
        """Take the tables of a plan, after checking them."""

class Chart:
    @staticmethod
    def of(plan: ChartPlan, weights: _Float64, is_max: bool, max_steps: int) -> Chart:
        """Compute the masses of all reached rows, for log weights ``[slots, labels]``, unless that takes more steps."""

    @property
    def steps(self) -> int:
        """Blocks of eight masses that were added or compared."""

    @property
    def is_complete(self) -> bool: ...
    @property
    def reached(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Whether parses from the start may need each row and each arrival, by boundary."""

    @property
    def masses(self) -> _Float64:
        """For each boundary and cell, a row over the boundaries from there on."""

    @property
    def arrivals(self) -> _Float64:
        """Likewise, for each boundary and arrival."""

    def label_shares(self, ends: _Float64, ending_cell: int, max_steps: int) -> tuple[_Float64 | None, int]:
        """The shares ``[slots, labels]``, None beyond the limit, and the steps that they took."""

def possible_parses(
    plan: ChartPlan, allowed: _UInt8, may_end: _UInt8, ending_cell: int, max_steps: int
) -> tuple[int, _UInt8 | None, _UInt8 | None]:
    """Return the steps; where parses end, of ``may_end``, ``[slots + 1]``; and the labels that some such parse has.

    ``allowed``: whether each slot may hold each label, ``[slots, labels]``. Beyond the limit, None in place of both.
    """
