"""Which settings this runner has no mechanism for."""

from __future__ import annotations

from ..config import RunnerConfig
from ..errors import ConfigurationError

#: Field of ``RunnerConfig``, the one value that this runner takes, and what it lacks for the others.
ONLY = (
    ("speculation", "none", "drafts are verified and advanced on the device, and its state is on the host"),
    ("grammars", False, "masks of grammars are the other runner's"),
    ("prompt_tokens", "staged", "prompts are in ordinary memory, and inputs are cut out of them on the host"),
    ("staged_writes", "copied", "it has no staged writes: whole tables are uploaded"),
    ("memory_fraction", 0.0, "it does not profile"),
)


def check_settings(config: RunnerConfig) -> None:
    """Refuse what this runner would have to ignore.

    Raises:
        ConfigurationError: a setting of ``ONLY`` has another value.
    """
    for field, value, reason in ONLY:
        if getattr(config, field) != value:
            raise ConfigurationError(
                f"RunnerConfig.{field}={getattr(config, field)!r} for baseline_v1",
                f"it takes {field}={value!r} only",
                reason,
                f"{field}={value!r}, or the runner mrv2.refrunner.model_runner.ModelRunner",
            )
