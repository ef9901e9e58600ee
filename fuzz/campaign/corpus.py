"""Where the examples of Hypothesis are kept: in the campaign's folder, or where several campaigns share them."""

from __future__ import annotations

from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, MultiplexedDatabase, ReadOnlyDatabase

from mrv2.checks.errors import CheckError

_REDIS = ("redis://", "rediss://", "unix://")
_READ_ONLY = "read-only:"


def corpus(text: str) -> ExampleDatabase:
    """An example database of Hypothesis.

    Args:
        text: a folder, or the URL of a Redis server; several with commas between them are one, which reads and writes
            all of them, except those behind ``read-only:``.

    Raises:
        CheckError: nothing is named, or the package for Redis is not installed.
    """
    parts = [_part(part.strip()) for part in text.split(",")]
    return parts[0] if len(parts) == 1 else MultiplexedDatabase(*parts)


def _part(text: str) -> ExampleDatabase:
    if text.startswith(_READ_ONLY):
        return ReadOnlyDatabase(_part(text.removeprefix(_READ_ONLY)))
    if text.startswith(_REDIS):
        return _redis(text)
    if not text or "://" in text:
        raise CheckError(
            f"--examples {text!r}",
            "each place is a folder or a URL that begins with redis://, rediss:// or unix://",
            "examples that are kept nowhere are of no use to the next campaign",
            "for example --examples read-only:/nightly/examples,examples or --examples redis://host:6379/0",
        )
    return DirectoryBasedExampleDatabase(Path(text))


def _redis(url: str) -> ExampleDatabase:
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
    except ImportError as error:
        raise CheckError(
            f"--examples {url}",
            f"the package redis must be installed: {error}",
            "it is what speaks to the server",
            "pip install redis, or a folder that all machines see",
        ) from error
    return RedisExampleDatabase(Redis.from_url(url))
