"""A tiny engine: it adds up what each request sends, and says which requests have reached their limit."""

from .runner import Runner

__all__ = ["Runner"]
