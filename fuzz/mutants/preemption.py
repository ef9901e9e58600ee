"""Faults planted in what the scheduler does with the outputs in flight of a request that has lost its row."""

from __future__ import annotations

from .source import Mutation

_SCHEDULER = "scheduler.py"
_DROPPED = """            if life != request.lives:
                continue  # its row was lost while the draw was in flight
"""
_RESET = "        request.num_computed = request.unverified = request.in_flight = 0\n"
_LIVES = "        request.proposed, request.lives = (), request.lives + 1\n"

PREEMPTION = (
    Mutation(
        "stale_output_taken",
        _SCHEDULER,
        _DROPPED,
        "",
        "what was in flight when a request lost its row is added to what it draws again",
    ),
    Mutation(
        "stale_output_counted",
        _SCHEDULER,
        "                continue  # its row was lost while the draw was in flight\n",
        "                request.in_flight -= 1 + draws.drafts.get(request.request_id, 0)\n                continue\n",
        "an output that is dropped counts as one of the request's new life",
    ),
    Mutation(
        "stale_outcome_corrects",
        _SCHEDULER,
        "                continue  # its row was lost while the draw was in flight\n",
        "                drafts = draws.drafts.get(request.request_id, 0)\n"
        "                if drafts and request in self._running:\n"
        "                    self._correct(request, drafts, drafts + 1 - len(output.token_ids[request.request_id]))\n"
        "                continue\n",
        "drafts that were rejected in a row that is lost are counted back in the new one",
    ),
    Mutation(
        "stale_proposals_kept",
        _SCHEDULER,
        "                continue  # its row was lost while the draw was in flight\n",
        "                if request in self._running:\n"
        "                    request.proposed = output.drafts.get(request.request_id, ())\n"
        "                continue\n",
        "drafts that were proposed in a row that is lost are verified in the new one",
    ),
    Mutation(
        "drafts_survive_preemption",
        _SCHEDULER,
        _LIVES,
        "        request.lives += 1\n",
        "the host keeps drafts of a request whose row, and the drafts with it, is gone",
    ),
    Mutation(
        "tokens_in_flight_still_counted",
        _SCHEDULER,
        _RESET,
        "        request.num_computed = request.unverified = 0\n",
        "tokens that were dropped still count as the request's own",
    ),
    Mutation(
        "unverified_survives_preemption",
        _SCHEDULER,
        _RESET,
        "        request.num_computed = request.in_flight = 0\n",
        "drafts whose outcome was dropped still count as not judged",
    ),
)
