"""The error that lets the search for the embedded model go on to the next source."""

from structgen.errors import ModelError

__all__ = ["SourceUnavailable"]


class SourceUnavailable(ModelError):
    """This source cannot give the model now (no network, no pip, not found); another one may.

    A source that gives something wrong (another checksum, a damaged archive) raises a plain ``ModelError``
    instead, which ends the search.
    """
