"""The parts of a step by the names that engines give them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache

from .records import DeviceKind


class Part(StrEnum):
    """What a step spends its time on."""

    SCHEDULER = "scheduler"
    STATE_UPDATE = "state update"
    STAGING = "staging and upload"
    INPUT_PREP = "input preparation"
    FORWARD = "forward"
    SAMPLER = "sampler"
    DRAFTING = "drafting"
    DOWNLOAD = "download"
    WAIT = "wait"
    #: Of a trace that names no part: what the runtime's calls take.
    LAUNCH_CALLS = "launch calls"
    COPY_CALLS = "copy calls"
    OTHER = "other"


#: Names of ranges, tried in this order: those of the reference runner, then words that engines use in theirs, as in
#: ``gpu_model_runner: forward``.
_RANGES = tuple(
    (re.compile(pattern, re.IGNORECASE), part)
    for pattern, part in (
        (r"mrv2\.scheduler", Part.SCHEDULER),
        (r"mrv2\.state_update", Part.STATE_UPDATE),
        (r"mrv2\.staging", Part.STAGING),
        (r"mrv2\.input_prep", Part.INPUT_PREP),
        (r"mrv2\.forward", Part.FORWARD),
        (r"mrv2\.sampler", Part.SAMPLER),
        (r"mrv2\.drafting", Part.DRAFTING),
        (r"mrv2\.download", Part.DOWNLOAD),
        (r"mrv2\.wait", Part.WAIT),
        (r"mrv2\..*", None),
        (r".*\b(draft|propos|specul).*", Part.DRAFTING),
        (r".*\bschedul.*", Part.SCHEDULER),
        (r".*(bookkeep|update_states|update_requests).*", Part.STATE_UPDATE),
        (r".*(preprocess|prepare_inputs|prepare_model_input|input_prep).*", Part.INPUT_PREP),
        (r".*(h2d|upload|copy_to_gpu|staging).*", Part.STAGING),
        (r".*(d2h|download|get_output|runner_?output).*", Part.DOWNLOAD),
        (r".*(sampl|logits_process|postprocess).*", Part.SAMPLER),
        (r".*\bforward\b.*", Part.FORWARD),
    )
)
#: Kernels, where no range says to what they belong.
_KERNELS = tuple(
    (re.compile(pattern, re.IGNORECASE), part)
    for pattern, part in (
        (r"sample|gumbel|argmax|top_?[kp]|multinomial|softmax|penalt|logprob|radixsort|distribution", Part.SAMPLER),
        (r"slot_mapping|block_table|prepare|gather_(input|block)|input_ids|positions|staged_write", Part.INPUT_PREP),
        (r"post_update|update_state", Part.STATE_UPDATE),
    )
)  # fmt: skip
#: What whole steps are called, the surest first.
STEP_NAMES = tuple(
    re.compile(pattern)
    for pattern in (
        r"mrv2\.step",
        r"execute_(context|new|model)\S*",
        r"(LLMEngine|EngineCore|Scheduler|Worker|GPUModelRunner)\S*(step|execute_model|run_batch)\S*",
        r"(engine|decode|prefill|model)?[ _.]?step\b.*",
        r"ProfilerStep#\d+",
    )
)


@cache
def part_of_range(name: str) -> Part | None:
    """The part that a range is; None if its name says nothing."""
    return next((part for pattern, part in _RANGES if pattern.fullmatch(name)), None)


@cache
def part_of_kernel(name: str) -> Part:
    """A guess by the name of a kernel; whatever says nothing belongs to the model."""
    return next((part for pattern, part in _KERNELS if pattern.search(name)), Part.FORWARD)


#: Copies between host and device belong to these, whatever range they are in.
COPIES: Mapping[DeviceKind, Part] = {DeviceKind.UPLOAD: Part.STAGING, DeviceKind.DOWNLOAD: Part.DOWNLOAD}
