"""Codes MRV7xx, startup: a configuration that is refused before anything runs."""

from __future__ import annotations

from ..findings import Soundness
from .entry import CodeInfo, Example

ENTRIES = (
    CodeInfo(
        code="MRV701",
        title="a configuration was refused at startup",
        soundness=Soundness.SOUND,
        rule="features that do not combine, and values that cannot work, are refused before anything runs",
        why="a silent fallback gives a measurement of something else, under the name of what was asked for",
        remedy="the message names the object, the rule and what to write instead",
        example=Example(
            "target.build({'num_kv_blocks': 2, 'block_size': 16, 'max_model_len': 4096})",
            "target.build({'num_kv_blocks': 256, 'block_size': 16, 'max_model_len': 4096})",
        ),
        stage="any",
    ),
)
