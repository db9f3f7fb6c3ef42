"""A Llama layer by layer, against transformers and against networks that were built without the layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.errors import GenerationError
from structgen.models.llama.model import LlamaModel
from structgen.models.protocol import LayeredSession
from structgen.models.protocol.tree import TokenTree
from structgen.models.toy.hash import HashModel

torch = pytest.importorskip("torch")

IDS = [5, 80, 3, 261, 99, 5, 17, 200, 42, 7, 7, 130]
KEPT = [(), (0,), (2,), (0, 2), (1, 2), (0, 1, 2)]


def load(folder: Path) -> LlamaModel:
    return LlamaModel(folder, name="tiny", device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> LlamaModel:
    return load(tiny_folder)


@pytest.fixture(scope="module")
def reference(tiny_folder: Path) -> Any:
    """The same folder, read by transformers."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=KEPT, ids=str)
def without(request: pytest.FixtureRequest, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Some layers, and a folder of a network with only these."""
    from safetensors.torch import load_file, save_file

    kept: tuple[int, ...] = request.param
    folder = tmp_path_factory.mktemp("fewer") / "model"
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": len(kept)}))
    weights = load_file(folder / "model.safetensors")
    fewer = {key: value for key, value in weights.items() if ".layers." not in key}
    for new, old in enumerate(kept):
        prefix = f"model.layers.{old}."
        fewer |= {
            key.replace(prefix, f"model.layers.{new}."): value
            for key, value in weights.items()
            if key.startswith(prefix)
        }
    save_file(fewer, folder / "model.safetensors", metadata={"format": "pt"})
    return kept, folder


def test_a_draft_from_nothing_is_a_network_without_the_layers(model: LlamaModel, without: Any) -> None:
    """Both have their own keys and values from the first token on; in one call, in several, and cut in between."""
    kept, folder = without
    expected = load(folder).start().extend_all(IDS)
    draft = model.start().skipping(kept, capacity=20)
    np.testing.assert_allclose(draft.extend(IDS[:5]), expected[4], atol=1e-4)
    draft.extend([9, 9, 9])
    draft.truncate(5)
    for count in range(5, len(IDS)):
        np.testing.assert_allclose(draft.extend([IDS[count]]), expected[count], atol=1e-4)
    assert draft.length == len(IDS)


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "in two segments"])
def test_a_draft_sees_what_the_whole_network_left(
    model: LlamaModel, reference: Any, without: Any, shared: bool
) -> None:
    """After a prefix it equals transformers without the layers, given their keys and values of the whole network."""
    transformers = pytest.importorskip("transformers")
    kept, folder = without
    if not kept:
        pytest.skip("transformers reads the position off the first layer")
    prefix = (IDS * 6)[:50]
    with torch.inference_mode():
        past = reference(input_ids=torch.tensor([prefix]), use_cache=True).past_key_values
        cache = transformers.DynamicCache()
        for new, old in enumerate(kept):
            cache.update(past.layers[old].keys.clone(), past.layers[old].values.clone(), new)
        fewer = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        expected = fewer(torch.tensor([IDS]), None, None, cache, use_cache=True).logits[0].numpy()
    session = model.start()
    session.extend(prefix[:40])
    other_session = session.fork() if shared else None
    session.extend(prefix[40:])
    draft = session.skipping(kept, capacity=len(IDS))
    np.testing.assert_allclose(draft.extend(IDS[:1]), expected[0], atol=1e-4)
    np.testing.assert_allclose(draft.extend(IDS[1:9]), expected[8], atol=1e-4)
    np.testing.assert_allclose(draft.extend(IDS[9:]), expected[-1], atol=1e-4)
    assert other_session is None or other_session.length == 40


def test_all_layers_are_the_model(model: LlamaModel) -> None:
    session = model.start()
    session.extend(IDS[:6])
    draft = session.skipping(range(3), capacity=8)
    rows = [draft.extend([token]) for token in IDS[6:]]
    np.testing.assert_allclose(rows, session.extend_all(IDS[6:]), atol=1e-4)


@pytest.mark.parametrize("shared", [False, True])
def test_drafts_leave_no_trace(model: LlamaModel, shared: bool) -> None:
    """The session and its forks answer the same, whatever was drafted, and count no pass for it."""
    session, other = model.start(), model.start()
    for each in (session, other):
        each.extend((IDS * 4)[:40])
    fork = session.fork() if shared else None
    forwards = session.forwards
    for kept in ([0], [0, 1, 2]):
        session.skipping(kept, capacity=200).extend((IDS * 20)[:200])
    assert (session.length, session.forwards) == (40, forwards)
    expected = other.extend_all(IDS)
    np.testing.assert_array_equal(session.extend_all(IDS), expected)
    if fork is not None:
        np.testing.assert_allclose(fork.extend_all(IDS), expected, atol=1e-5)


def test_a_draft_ends_with_what_it_stands_after(model: LlamaModel) -> None:
    session = model.start()
    session.extend(IDS)
    first = session.skipping([0], capacity=2)
    second = session.skipping([0, 1], capacity=2)
    with pytest.raises(GenerationError, match="has changed"):
        first.extend([5])
    second.extend([5])
    with pytest.raises(GenerationError, match="no capacity for 3"):
        second.extend([5, 5])
    with pytest.raises(GenerationError, match="cut to 11"):
        second.truncate(11)
    session.extend([5])
    with pytest.raises(GenerationError, match="has changed"):
        second.extend([5])
    third = session.skipping([0, 1], capacity=2)
    session.truncate(3)
    with pytest.raises(GenerationError, match="has changed"):
        third.extend([5])
    with pytest.raises(GenerationError, match="no token has the id 264"):
        session.skipping([0], capacity=2).extend([264])


def test_a_draft_drops_a_tree(model: LlamaModel) -> None:
    """It overwrites the tree's keys and values, so that none of them can be kept any more."""
    session, other = model.start(), model.start()
    session.extend_tree(IDS, TokenTree([5, 6], [-1, -1]))
    session.skipping([0], capacity=2).extend([7, 8])
    with pytest.raises(GenerationError, match="no tree"):
        session.keep([0])
    other.extend(IDS)
    np.testing.assert_array_equal(session.extend([9]), other.extend([9]))


@pytest.mark.parametrize("kept", [[1, 0], [0, 0], [3], [-1]])
def test_layers_that_are_none_are_refused(model: LlamaModel, kept: list[int]) -> None:
    session = model.start()
    with pytest.raises(GenerationError, match="ascending order"):
        session.skipping(kept, capacity=1)


def test_states_are_those_of_transformers(model: LlamaModel, reference: Any) -> None:
    """This holds for all rows of a pass, with a prompt in several calls; the last state is before the final norm."""
    with torch.inference_mode():
        found = reference(input_ids=torch.tensor([IDS]), output_hidden_states=True)
    hidden = [layer[0].numpy() for layer in found.hidden_states]
    session = model.start()
    assert isinstance(session, LayeredSession)
    session.extend(IDS[:4])
    assert session.states == {}
    session.watched = (0, 1, 2, 3)
    session.extend(IDS[4:9])
    states = session.states
    for layer in range(3):
        np.testing.assert_allclose(states[layer], hidden[layer][4:9], atol=1e-4)
    logits = session.exit_logits(states[3])
    np.testing.assert_allclose(logits, found.logits[0, 4:9].numpy(), atol=1e-4)
    with torch.inference_mode():
        normed = reference.model.norm(torch.from_numpy(states[3].copy())).numpy()
    np.testing.assert_allclose(normed, hidden[3][4:9], atol=1e-4)
    session.watched = (2,)
    session.extend_all(IDS[9:])
    assert list(session.states) == [2]
    np.testing.assert_allclose(session.states[2], hidden[2][9:], atol=1e-4)
    np.testing.assert_allclose(session.embedded(IDS), hidden[0], atol=1e-6)
    assert (session.layers, session.width) == (3, 24)


def test_states_of_sequences_in_one_pass_and_of_trees(model: LlamaModel, reference: Any) -> None:
    from structgen.models.protocol import Extension

    first, second = model.start(), model.start()
    second.watched = (2,)
    tree = TokenTree([5, 6, 7], [-1, 0, -1])
    model.extend_many([Extension(first, IDS, False), Extension(second, IDS[:3], False, tree)])
    assert first.states == {}
    for path, row in (([], 2), ([5], 3), ([5, 6], 4), ([7], 5)):
        with torch.inference_mode():
            ids = torch.tensor([IDS[:3] + path])
            hidden = reference(input_ids=ids, output_hidden_states=True).hidden_states[2][0, -1].numpy()
        np.testing.assert_allclose(second.states[2][row], hidden, atol=1e-4)


def test_an_exit_is_a_network_that_ends_there(model: LlamaModel, without: Any) -> None:
    kept, folder = without
    if kept != tuple(range(len(kept))):
        pytest.skip("no exit")
    session = model.start()
    session.watched = (len(kept),)
    session.extend_all(IDS)
    expected = load(folder).start().extend_all(IDS)
    np.testing.assert_allclose(session.exit_logits(session.states[len(kept)]), expected, atol=1e-4)


def test_a_trimmed_head_is_rows_of_the_whole_one(model: LlamaModel) -> None:
    session = model.start()
    session.watched = (1,)
    session.extend(IDS)
    head = session.trimmed([7, 3, 263])
    assert head.ids.tolist() == [7, 3, 263]
    states = session.states[1]
    np.testing.assert_allclose(
        session.exit_logits(states, head=head), session.exit_logits(states)[:, head.ids], atol=1e-5
    )
    whole = session.skipping([0, 2], capacity=1).extend([8])
    np.testing.assert_allclose(session.skipping([0, 2], capacity=1).extend([8], head=head), whole[head.ids], atol=1e-5)
    for wrong in ([], [264], [-1]):
        with pytest.raises(GenerationError, match="ids run from 0 to 263"):
            session.trimmed(wrong)
    with pytest.raises(GenerationError, match="no head of this model"):
        session.exit_logits(states, head=HashModel(model.vocabulary))  # type: ignore[arg-type]


@pytest.mark.parametrize("position", [0, 3, 8, 11])
def test_other_states_of_one_token(model: LlamaModel, position: int) -> None:
    """What a layer makes of them is what a session says whose last token has that state there."""
    session = model.start()
    session.extend(IDS[:9])
    session.fork()  # shares the first of two segments
    session.extend(IDS[9:])
    other = model.start()
    if position:
        other.extend(IDS[:position])
    tokens = [4, 90, 200]
    for layer in range(3):
        other.watched = (layer, layer + 1)
        rows, expected = [], []
        for token in tokens:
            other_session = other.fork()
            other_session.watched = other.watched
            other_session.extend([token])
            rows.append(other_session.states[layer][0])
            expected.append(other_session.states[layer + 1][0])
        np.testing.assert_allclose(session.through(layer, np.stack(rows), position), expected, atol=1e-4)
    for layer, at in ((3, 0), (-1, 0), (0, 12), (0, -1)):
        with pytest.raises(GenerationError, match="no layer"):
            session.through(layer, np.stack(rows), at)
