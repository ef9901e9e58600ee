"""Refuses what ``virtual_device`` cannot use, before the first change of torch; a guess would give another run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..events import EventSink
from .errors import VirtualDeviceError
from .schedules import Decision, Reason, Recorder, Schedule, Scheduler, start_scheduler

if TYPE_CHECKING:
    from .memory import Poison
    from .runtime import Runtime

Hook: TypeAlias = "Callable[[Runtime], Callable[[], None]]"

_MODES = ("compiled", "interpreted")
#: Streams with smaller numbers are held back by schedules that are tried on any program, whatever streams it makes.
_FIRST_NAMED = 2


def checked_scheduler(schedule: object, seed: object) -> Scheduler:
    """A started scheduler, each answer of which is checked.

    Raises:
        VirtualDeviceError: it is no schedule, or the seed is no number.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise VirtualDeviceError(
            f"seed={seed!r}",
            "a seed is an integer, 0 or more",
            "text and number of a schedule must give the same run again, on any machine",
            "seed=7, or a schedule that names it, such as 'random:0@7'",
        )
    if isinstance(schedule, str | Schedule | Recorder):
        return start_scheduler(schedule, seed)
    return start_scheduler(checked_answers(schedule), seed)


def checked_answers(scheduler: Any) -> Scheduler:
    """A scheduler of the program's own, each answer of which is checked.

    Raises:
        VirtualDeviceError: it lacks one of a scheduler's methods.
    """
    missing = [name for name in ("start", "choose", "decisions") if not callable(getattr(scheduler, name, None))]
    if missing or isinstance(scheduler, type):
        raise VirtualDeviceError(
            f"schedule={scheduler!r}",
            "a schedule is a text, a Schedule, or an object with the methods of a Scheduler: start, choose, decisions",
            "it is asked at each moment at which the device may run something",
            "schedule='late', or an object of a class with these three methods",
        )
    return _Checked(scheduler)


class _Checked:
    """A scheduler whose wrong answers are named as such, and not met somewhere in the program."""

    def __init__(self, inner: Scheduler) -> None:
        self._inner = inner

    def start(self, seed: int) -> None:
        """See :class:`~mrv2.checks.virtual.schedules.Scheduler`."""
        self._inner.start(seed)

    def choose(self, ready: Sequence[int], reason: Reason) -> int | None:
        """See :class:`~mrv2.checks.virtual.schedules.Scheduler`."""
        choice = self._inner.choose(ready, reason)
        if choice is None or (type(choice) is int and 0 <= choice < len(ready)):
            return choice
        raise VirtualDeviceError(
            f"scheduler {type(self._inner).__name__}, which answered {choice!r} when asked with ready={list(ready)}",
            "choose answers None, or an index into ready: 0 or more, and less than its length",
            "ready holds the ids of the streams that can run; an index beyond it, or a stream's id, names none of them",
            "return ready.index(stream), or None to let the host go on",
        )

    def decisions(self) -> tuple[Decision, ...]:
        """See :class:`~mrv2.checks.virtual.schedules.Scheduler`."""
        return self._inner.decisions()


def check_streams_named(schedule: object, streams: int) -> None:
    """Refuse, when a program is over, a schedule that names a stream which the program never made.

    Args:
        schedule: as the user gave it; schedulers of the user's own name none.
        streams: how many streams there were, numbered from 0.

    Raises:
        VirtualDeviceError: it is ``starve`` with such a stream, or deviates to one.
    """
    chosen = Schedule.parse(schedule) if isinstance(schedule, str) else schedule
    if not isinstance(chosen, Schedule):
        return
    last = max(streams, _FIRST_NAMED) - 1
    name, _, number = chosen.base.partition(":")
    if name == "starve" and number and int(number) > last:
        raise VirtualDeviceError(
            f"schedule {str(schedule)!r}",
            f"the stream that it holds back must exist; the program has the streams 0 to {streams - 1}",
            "nothing was held back, so the run was that of 'early'",
            f"starve:{streams - 1}" if streams > 1 else "'early', or 'starve' for the default stream",
        )
    wrong = [item for item in chosen.deviations if item.stream is not None and item.stream > last]
    if wrong:
        raise VirtualDeviceError(
            f"schedule {str(schedule)!r}",
            f"the stream of a deviation ({wrong[0]}) must exist; the program has the streams 0 to {streams - 1}",
            "the deviation did nothing, so the run was another than the one that was asked for",
            "take the schedule from a run of the same program, or name one of its streams",
        )


def checked_poison(poison: Poison) -> Poison:
    """The same, with each answer checked if it is a function.

    Raises:
        VirtualDeviceError: it is neither a byte nor a function.
    """
    if not callable(poison):
        return _byte(poison, f"poison={poison!r}")
    return lambda number: _byte(poison(number), f"poison of allocation {number}")


def _byte(value: object, subject: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 0xFF:
        return value
    raise VirtualDeviceError(
        subject,
        f"it must be a byte, 0 to 255, or a function of an allocation's number that gives one; it is {value!r}",
        "each byte of memory that nobody has written is set to it",
        "poison=0xFB, which is large and negative as a number of any type",
    )


def checked_hooks(hooks: object) -> tuple[Hook, ...]:
    """The installers as a tuple, each of which must return its undo.

    Raises:
        VirtualDeviceError: they are no functions.
    """
    found = tuple(hooks) if isinstance(hooks, Iterable) else (hooks,)
    if not isinstance(hooks, Iterable) or not all(callable(hook) for hook in found):
        raise _no_hook(f"hooks={hooks!r}")
    return tuple(map(_with_undo, found))


def _with_undo(hook: Hook) -> Hook:
    def install(runtime: Runtime) -> Callable[[], None]:
        undo = hook(runtime)
        if not callable(undo):
            raise _no_hook(f"hook {getattr(hook, '__qualname__', hook)}, which returned {undo!r}")
        return undo

    return install


def _no_hook(subject: str) -> VirtualDeviceError:
    return VirtualDeviceError(
        subject,
        "hooks are functions that take the device's runtime, and return a function that undoes what they did",
        "they are called when the block begins, and their undo when it ends",
        "hooks=(install,)",
    )


def check_kernels(kernels: object) -> None:
    """Refuse a mode of kernels that there is not.

    Raises:
        VirtualDeviceError: it is none.
    """
    if kernels not in _MODES:
        raise VirtualDeviceError(
            f"kernels={kernels!r}",
            "kernels are 'compiled' or 'interpreted'",
            "any other word would count as one of the two, perhaps not the one that was meant",
            "kernels='interpreted'",
        )


def check_sink(sink: object) -> None:
    """Refuse what cannot take events.

    Raises:
        VirtualDeviceError: it lacks a method of an EventSink.
    """
    verbs = [name for name in vars(EventSink) if not name.startswith("_") and callable(getattr(EventSink, name))]
    missing = [name for name in verbs if not callable(getattr(sink, name, None))]
    if sink is not None and missing:
        raise VirtualDeviceError(
            f"sink={sink!r}",
            f"a sink has every method of EventSink; it lacks {', '.join(missing)}",
            "it is told of all that the program does",
            "HappensBefore(), or Tee(HappensBefore(), Recorder(records.append)) to hear the events as well",
        )


def check_trace(trace: object) -> None:
    """Refuse what is no path.

    Raises:
        VirtualDeviceError: it is none.
    """
    if trace is not None and not isinstance(trace, str | Path):
        raise VirtualDeviceError(
            f"trace={trace!r}",
            "it must be the path of a file, as a text or a Path",
            "the events of the run are written there",
            "trace='run.jsonl'",
        )
