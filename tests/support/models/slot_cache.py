"""Keys and values of the slots of one canvas, for passes over some of them.

A network without a causal mask has no cache in the usual sense: when one slot changes, the keys and values of every
other slot change with it, in all layers but the first.  They change little, though, and a pass over the *live* slots
alone that reads the others from an earlier pass costs as much as the live slots are (Fast-dLLM, Wu et al. 2025, arXiv
2505.22618; dKV-Cache, Ma et al. 2025, arXiv 2505.15781).  What comes out

- is exact when every slot is live: a refresh;
- is exact in the live slots when every slot whose token changed is live and the network has one layer, or the slots
  left out do not attend to those that changed (a prompt that does not see the canvas);
- is an approximation otherwise.

A network takes part by handing the keys and values of each layer to ``SlotPass.put`` and attending to what comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

import numpy as np
import torch

from structgen.models.diffusion.torch_slot_logits import LiveLogits

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from structgen.models.diffusion.torch_slot_logits import CanvasResidence
    from structgen.models.protocol import Logits
    from structgen.models.protocol.diffusion import SlotLogits

__all__ = ["LiveCanvas", "LiveRun", "SlotCache", "SlotPass"]


@final
class SlotCache:
    """Keys and values of all slots, by layer.

    Invariant: what a layer holds about a slot is of the last whole pass in which the slot was live.

    Args:
        layers: layers of the network that have keys and values.
        slots: slots of the canvas; a network whose prompt sees the canvas counts the prompt's tokens too.
    """

    def __init__(self, layers: int, slots: int) -> None:
        self.slots = slots
        self._layers = layers
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._held = np.zeros(slots, dtype=np.bool_)

    @property
    def missing(self) -> NDArray[np.bool_]:
        """The slots that no pass has run yet, bool ``[slots]``; the next pass has to."""
        return ~self._held

    def begin(self, live: torch.Tensor) -> SlotPass:
        """Return a pass over the slots ``live``, int64 and ascending; to be used in a ``with`` statement.

        Raises:
            ValueError: a slot is missing and not live.
        """
        held = self._held.copy()
        held[live.cpu().numpy()] = True
        if not held.all():
            raise ValueError(
                f"every slot that no pass has run yet must be live; slot {int(np.argmin(held))} is not; see missing"
            )
        return SlotPass(self, live)

    def forget(self) -> None:
        """Drop everything."""
        self._keys.clear()
        self._values.clear()
        self._held[:] = False

    def write(
        self, layer: int, live: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's keys and values of the slots ``live``; return those of all slots."""
        if layer == len(self._keys) < self._layers:
            shape = (*keys.shape[:-2], self.slots, keys.shape[-1])
            self._keys.append(keys.new_zeros(shape))
            self._values.append(values.new_zeros((*values.shape[:-2], self.slots, values.shape[-1])))
        self._keys[layer][..., live, :] = keys
        self._values[layer][..., live, :] = values
        return self._keys[layer], self._values[layer]

    def close(self, live: torch.Tensor, written: int) -> None:
        """Note that a pass over ``live`` is over, which has written so many layers.

        Raises:
            ValueError: they are not all of them.
        """
        if written != self._layers:
            self.forget()
            raise ValueError(f"a pass must put keys and values of all {self._layers} layers; found {written}")
        self._held[live.cpu().numpy()] = True


@final
class SlotPass:
    """One forward pass over the live slots of a cache.

    A pass that breaks off leaves some layers written and others not, so the cache then forgets everything.
    """

    def __init__(self, cache: SlotCache, live: torch.Tensor) -> None:
        self.live = live
        self._cache = cache
        self._layer = 0

    def put(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Hand over the live slots' keys and values of the next layer, and get those of all slots.

        Args:
            keys: ``[..., live slots, width]``, with what marks positions (rotary embeddings) already in them.
            values: likewise.

        Returns:
            ``[..., slots, width]`` each, to be read before the next pass and not to be written to.
        """
        self._layer += 1
        return self._cache.write(self._layer - 1, self.live, keys, values)

    def __enter__(self) -> SlotPass:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._cache.close(self.live, self._layer)
        else:
            self._cache.forget()


class LiveRun(Protocol):
    """A network's pass over some slots of a canvas."""

    def __call__(self, canvas: NDArray[np.int32], through: SlotPass, /) -> Logits | torch.Tensor:
        """Run the slots ``through.live`` of a canvas; return their logits, ``[live slots, size]``."""


@final
class LiveCanvas:
    """What ``CachingDenoiser.denoise_live`` keeps of a canvas: keys, values and the logits of each slot's last pass.

    Args:
        run: the network.
        layers: see ``SlotCache``.
        device: of the network.
        residence: what logits are asked through where they stay on the device; None where they are kept on the host.
    """

    def __init__(
        self,
        run: LiveRun,
        *,
        layers: int,
        device: torch.device | str = "cpu",
        residence: CanvasResidence | None = None,
    ) -> None:
        self._run = run
        self._layers = layers
        self._device = torch.device(device)
        self._cache: SlotCache | None = None
        self._logits = LiveLogits(residence)
        self.passes = 0

    def denoise(self, canvas: NDArray[np.int32], live: NDArray[np.bool_]) -> Logits:
        """Run the live slots, and those that no call has run yet; see ``CachingDenoiser.denoise_live``.

        A canvas of another length than the last one starts over.
        """
        self._pass(canvas, live)
        return self._logits.host()

    def denoise_resident(
        self, canvas: NDArray[np.int32], live: NDArray[np.bool_], asked: NDArray[np.bool_]
    ) -> SlotLogits:
        """Do what ``denoise`` does, and leave the logits where they are.

        Args:
            canvas: int32 ``[slots]``.
            live: bool ``[slots]``; the slots that run.
            asked: bool ``[slots]``; the slots that are asked about.
        """
        self._pass(canvas, live)
        return self._logits.resident(asked)

    def _pass(self, canvas: NDArray[np.int32], live: NDArray[np.bool_]) -> None:
        """Run the live slots, and those that no call has run yet; afterwards the logits of all slots are there."""
        if self._cache is None or self._cache.slots != len(canvas):
            self.forget()
            self._cache = SlotCache(self._layers, len(canvas))
        slots = np.flatnonzero(live | self._cache.missing)
        if len(slots):
            with self._cache.begin(torch.from_numpy(slots).to(self._device)) as through:
                found = torch.as_tensor(self._run(canvas, through), device=self._device)
            self.passes += 1
            if len(self._logits):
                self._logits.write(slots, found)
            else:  # a new cache misses all slots
                self._logits.begin(found)

    def forget(self) -> None:
        """Drop keys, values and logits of all slots."""
        self._cache = None
        self._logits.forget()
