"""What the tests of the facade share: a small configuration, prompts, and how to look at what is left."""

from mrv2.refrunner.config import RunnerConfig

CONFIG = RunnerConfig(max_num_reqs=3, max_num_batched_tokens=16, max_model_len=48, block_size=4, num_kv_blocks=25)
PROMPTS = [[5, 6, 7], [200], [9, 9, 9, 9, 9, 9], [1, 2], list(range(100, 120))]


def tokens(completions):
    return [completion.token_ids for completion in completions]


def is_idle(llm):
    """Nothing of a request is left in scheduler, pool or runner."""
    engine = llm._engine
    scheduler, runner = engine._scheduler, engine._runner
    pool = scheduler._blocks.pool
    return (
        not scheduler.has_work
        and scheduler.requests == {}
        and not scheduler._pending_draws
        and not engine._in_flight
        and pool.num_free == pool.capacity
        and runner._states.row_of == {}
        and runner.invariants() == []
    )
