"""Faults that show only in what requests seldom do or ask for: campaigns draw it, and must find them."""

from __future__ import annotations

from .source import Mutation

_REPORTS = "kernels/logprobs.py"
_SCATTER = "            self._scatter(upload, writes)\n"
_NOTHING = "            if layout is None:\n                return EmptyOutput()\n"

SELDOM = (
    Mutation(
        "update_keeps_its_row",
        "model_runner.py",
        "replaced = [request.request_id for request in step.new if request.request_id in self._states.row_of]",
        "replaced: list[str] = []",
        "a streaming update gets a second row, and the first one is lost",
    ),
    Mutation(
        "writes_of_an_empty_step_are_lost",
        "model_runner.py",
        _SCATTER + _NOTHING,
        _NOTHING + _SCATTER,
        "what is staged in a step that computes nothing never reaches its tables",
    ),
    Mutation(
        "likeliest_by_highest_id",
        _REPORTS,
        "((key == ordered(value)) & (tl.load(ids_ptr + other) < token))",
        "((key == ordered(value)) & (tl.load(ids_ptr + other) > token))",
        "of equally likely tokens a report has the highest id first; under a grammar many are equally impossible",
    ),
    Mutation(
        "report_of_one_turn",
        _REPORTS,
        "    for start in range(0, wanted, _COLUMNS):\n",
        "    for start in range(0, 1):\n",
        "only the first 64 of the likeliest tokens are sorted and reported",
    ),
)
