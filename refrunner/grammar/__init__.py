"""Structured output: tokens are drawn only where a grammar allows them; see README.md in this folder."""
