"""Renderers of findings and verdicts: console, JSON, SARIF, workflow commands."""
