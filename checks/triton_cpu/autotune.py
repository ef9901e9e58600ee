"""Autotuned kernels where no GPU is there to time them."""

from __future__ import annotations

from typing import Any

from triton.runtime.autotuner import Autotuner


def run_first_config(tuner: Autotuner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Launch with the first configuration that the kernel's own pruning leaves: timing them would mean nothing."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    try:
        config = tuner.configs[0] if len(tuner.configs) == 1 else tuner.prune_configs(kwargs)[0]
        tuner.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
        return tuner.fn.run(*args, **kwargs, **config.all_kwargs())
    finally:
        tuner.nargs = None
