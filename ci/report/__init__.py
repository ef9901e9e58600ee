"""Renderers of findings and verdicts: console, JSON, and the baseline of accepted findings."""
