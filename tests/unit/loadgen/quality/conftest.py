"""The small data directory of the traces' tests, for what asks a trace's questions."""

from ..traces.conftest import data, put

__all__ = ["data", "put"]
