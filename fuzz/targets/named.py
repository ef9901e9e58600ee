"""Targets that have a name of their own on the command line."""

from __future__ import annotations

REFERENCE = "refrunner"

#: The object that each name stands for, as ``package.module:object``.
OWN_TARGETS = {
    REFERENCE: "mrv2.fuzz.targets.reference:ReferenceTarget",
    "baseline_v1": "mrv2.fuzz.targets.baseline:BaselineTarget",
}
