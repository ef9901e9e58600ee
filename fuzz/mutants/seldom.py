"""Faults that show only in what requests seldom do or ask for: campaigns draw it, and must find them."""

from __future__ import annotations

from .source import Mutation

_REPORTS, _WORDS = "kernels/logprobs.py", "kernels/logits_processing.py"
_HISTORY = "token_ids_ptr + row * token_ids_stride, length, first_token, BLOCK,\n"
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
    Mutation(
        "bad_words_look_back_one",
        _WORDS,
        "            found = tl.load(history_ptr + length - size + lane, mask=compared, other=0)\n",
        "            found = tl.load(history_ptr + length - 1 + lane * 0, mask=compared, other=0)\n",
        "every token of a bad word is compared with the last one of the sequence",
    ),
    Mutation(
        "bad_words_of_one_turn",
        _WORDS,
        "        for done in range(0, size, _HISTORY):\n",
        "        for done in range(0, 1):\n",
        "of a bad word only the first 32 tokens are compared",
    ),
    Mutation(
        "bad_words_before_the_drafts",
        _WORDS,
        _HISTORY,
        _HISTORY.replace("length,", "length - (tl.load(offsets_ptr + index) if DRAFTS else 0),"),
        "bad words are looked for before the drafts of a step, wherever the token stands among them",
    ),
)
