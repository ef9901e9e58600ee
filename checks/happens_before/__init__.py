"""Races by happens-before, from the events of a run."""

from .core import HappensBefore
from .fences import Fence, Need, analyse_fences
from .recording import Recorder, Replayer, Tee
from .records import Record
from .trace import TraceWriter, read_trace, replay_trace

__all__ = [
    "Fence",
    "HappensBefore",
    "Need",
    "Record",
    "Recorder",
    "Replayer",
    "Tee",
    "TraceWriter",
    "analyse_fences",
    "read_trace",
    "replay_trace",
]
