"""The happens-before checker, and what there was for it to judge."""

from __future__ import annotations

from collections import Counter

from mrv2.checks.events import LaneKind, OperationKind, Stack, SyncKind, plain_name
from mrv2.checks.happens_before import HappensBefore


class Counting(HappensBefore):
    """The judge, who also counts what there was to judge."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: list[str] = []
        self.enqueued: Counter[tuple[OperationKind, str]] = Counter()
        self.syncs: Counter[str] = Counter()

    def lane(self, kind: LaneKind, name: str) -> int:
        """See :class:`EventSink`."""
        self.lanes.append(plain_name(name) if kind is LaneKind.STREAM else kind.value)
        return super().lane(kind, name)

    def operation(
        self,
        lane: int,
        kind: OperationKind,
        name: str,
        stack: Stack,
        *,
        issuer: int | None = None,
        step: int | None = None,
        open: bool = False,  # noqa: A002 - the contract's name
    ) -> int:
        """See :class:`EventSink`."""
        if issuer is not None and kind is not OperationKind.MARKER:
            self.enqueued[kind, name] += 1
        return super().operation(lane, kind, name, stack, issuer=issuer, step=step, open=open)

    def sync(self, lane: int, kind: SyncKind, name: str, stack: Stack, *, step: int | None = None) -> int:
        """See :class:`EventSink`."""
        self.syncs[kind.value] += 1
        return super().sync(lane, kind, name, stack, step=step)
