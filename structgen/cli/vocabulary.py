"""The models that ``--model`` names, and their tokens alone where no model is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from structgen.cli.failure import UNUSABLE, Failure
from structgen.cli.progress import ProgressLine
from structgen.errors import ModelError

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.models import LanguageModel
    from structgen.models.diffusion import DiffusionModel

__all__ = ["EMBEDDED", "diffusion_model_of", "model_of", "vocabulary_of"]

EMBEDDED: Final = "embedded"
"""What ``--model`` calls the model that is used without it."""


def model_of(name: str | None, progress: ProgressLine, *, device: str = "auto") -> LanguageModel:
    """Load a model.

    Raises:
        Failure: there is no model of this name, it cannot be loaded, or there is no such device.
        ModelError: the embedded model cannot be fetched.
    """
    from structgen.models import load_model

    try:
        return load_model(None if name == EMBEDDED else name, device=device, progress=progress)
    except ModelError as error:
        if name in {None, EMBEDDED} and not error.subject.startswith("device"):
            raise
        raise Failure(str(error), UNUSABLE) from error
    finally:
        progress.close()


def diffusion_model_of(
    name: str | None, progress: ProgressLine, *, trust_remote_code: bool, device: str = "auto"
) -> DiffusionModel:
    """Load a diffusion model.

    Raises:
        Failure: there is no model of this name, it cannot be loaded, or there is no such device.
        ModelError: the embedded model cannot be loaded.
    """
    from structgen.models import load_diffusion_model

    try:
        return load_diffusion_model(
            None if name == EMBEDDED else name, trust_remote_code=trust_remote_code, device=device, progress=progress
        )
    except ModelError as error:
        if name in {None, EMBEDDED} and not error.subject.startswith("device"):
            raise
        raise Failure(str(error), UNUSABLE) from error
    finally:
        progress.close()


def vocabulary_of(name: str) -> Vocabulary:
    """Read the tokens of a model, without its weights where they lie in a folder or file of their own.

    Raises:
        Failure: there is no model of this name.
        ModelError: the embedded model cannot be fetched.
        VocabularyError: its tokenizer cannot be read.
    """
    from structgen.engine import Vocabulary
    from structgen.models import embedded_folder
    from structgen.models.location import find_local

    progress = ProgressLine()
    try:
        local = embedded_folder(progress=progress) if name == EMBEDDED else find_local(name)
    except ModelError as error:
        if name == EMBEDDED:
            raise
        raise Failure(str(error), UNUSABLE) from error
    finally:
        progress.close()
    return model_of(name, progress).vocabulary if local is None else Vocabulary.load(local)
