"""Blocks are handed out, shared, copied and taken back: the pool, the index, and the manager over them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.kv_block_pool import KVBlockPool
from mrv2.refrunner.kv_cache_manager import KVCacheManager, PrefixMatch
from mrv2.refrunner.kv_groups import blocks_below_window
from mrv2.refrunner.prefix_index import ROOT, BlockContent, PrefixIndex

SIZE = 4


def contents(tokens):
    """The chain of contents of a sequence's full blocks."""
    chain = []
    for start in range(0, len(tokens) - SIZE + 1, SIZE):
        chain.append(BlockContent.after(chain[-1].name if chain else ROOT, tokens[start : start + SIZE]))
    return chain


def test_a_name_depends_on_every_token_before_it():
    first, second = contents([1, 2, 3, 4, 5, 6, 7, 8]), contents([9, 2, 3, 4, 5, 6, 7, 8])
    assert first[1].tokens == second[1].tokens
    assert first[1].name != second[1].name
    assert first == contents([1, 2, 3, 4, 5, 6, 7, 8, 9])
    # Neither do tokens run into each other, nor do signs or sizes get lost.
    names = {BlockContent.after(ROOT, tokens).name for tokens in ([1, 23], [12, 3], [1, 2, 3], [256, 1], [1, 256])}
    assert len(names) == 5


def test_the_index_knows_one_block_a_group_for_each_content():
    index, (content, *_) = PrefixIndex(2), contents([1, 2, 3, 4])
    index.add(5, 0, content)
    index.add(6, 0, content)
    index.add(7, 1, content)
    assert (index.find(0, content.name), index.find(1, content.name)) == (5, 7)
    assert [block in index for block in (5, 6, 7)] == [True, False, True]
    index.forget(5)
    assert index.find(0, content.name) is None
    assert list(index.continuations(ROOT)) == [content.name]
    index.forget(7)
    assert not index.continuations(ROOT)


def test_blocks_of_unknown_content_go_first_and_the_one_freed_last_before_the_others():
    pool = KVBlockPool(6)
    blocks = pool.allocate(5)
    assert blocks == (1, 2, 3, 4, 5)
    pool.index.add(2, 0, contents([1, 2, 3, 4])[0])
    pool.free([1, 2])
    pool.free([4])
    assert pool.num_free == 3
    assert pool.allocate(3) == (4, 1, 2)
    assert 2 not in pool.index


def test_known_blocks_are_given_up_least_recently_used_first_and_ends_before_beginnings():
    pool = KVBlockPool(5)
    chain = contents(range(16))
    for block, content in zip(pool.allocate(4), chain, strict=True):
        pool.index.add(block, 0, content)
    pool.free([3, 4])
    pool.free([1, 2])
    pool.share([4])
    pool.free([4])
    assert pool.allocate(4) == (3, 2, 1, 4)


def test_a_shared_block_is_free_when_the_last_holder_lets_go():
    pool = KVBlockPool(3)
    (block,) = pool.allocate(1)
    pool.index.add(block, 0, contents([1, 2, 3, 4])[0])
    pool.share([block])
    pool.free([block])
    assert (pool.num_free, pool.is_free(block)) == (1, False)
    pool.free([block])
    assert (pool.num_free, pool.is_free(block)) == (2, True)


def make_manager(blocks=20, windows=(0,), caching=True):
    config = RunnerConfig(block_size=SIZE, num_kv_blocks=blocks, max_model_len=64, prefix_caching=caching)
    return KVCacheManager(config, windows)


def run(manager, tokens, end=None):
    """A request that starts with what is known and computes up to ``end`` at once; returns its record and the match."""
    blocks = manager.nothing_held()
    used = manager.start(blocks, manager.match(blocks, tokens), len(tokens) if end is None else end)
    return blocks, used


def leave(manager, tokens, computed=None):
    """A request that has come and gone."""
    blocks, _ = run(manager, tokens)
    manager.take_copies()
    manager.release(blocks, tokens, len(tokens) if computed is None else computed)


def test_a_prefix_is_shared_block_by_block():
    manager = make_manager()
    tokens = list(range(20))
    leave(manager, tokens)
    blocks, used = run(manager, [*tokens[:12], 99, 98, 97, 96, 95])
    assert used == PrefixMatch(12, ((1, 2, 3),))
    assert blocks.tables == ([1, 2, 3, *blocks.tables[0][3:]],)
    assert manager.take_copies() == ()
    other, used = run(manager, [*tokens[:8], 50])
    assert used == PrefixMatch(8, ((1, 2),))
    assert other.tables[0][:2] == [1, 2]


def test_a_prefix_that_ends_inside_a_block_is_copied():
    manager = make_manager()
    leave(manager, list(range(20)))
    blocks, used = run(manager, [*range(10), 99, 98])
    assert used == PrefixMatch(10, ((1, 2),), (3,))
    ((source, target),) = manager.take_copies()
    assert (source, target) == (3, blocks.tables[0][2])
    assert target not in (1, 2, 3)
    assert manager.stats.copied_blocks == 1


def test_one_token_is_always_computed():
    manager = make_manager()
    tokens = list(range(12))
    leave(manager, tokens)
    blocks, used = run(manager, tokens)
    assert used == PrefixMatch(11, ((1, 2),), (3,))
    assert manager.take_copies() == ((3, blocks.tables[0][2]),)


def test_the_longest_of_several_continuations_is_copied():
    manager = make_manager()
    leave(manager, [1, 2, 3, 4, 5, 6, 0, 0])
    leave(manager, [1, 2, 3, 4, 5, 6, 7, 0])
    leave(manager, [1, 2, 3, 4, 5, 0, 0, 0])
    _, used = run(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert used.num_tokens == 7


def test_only_full_blocks_of_known_and_computed_tokens_are_found():
    manager = make_manager()
    tokens = list(range(20))
    leave(manager, tokens, computed=9)
    assert run(manager, tokens)[1].num_tokens == 8
    manager = make_manager()
    leave(manager, tokens[:7], computed=20)
    assert run(manager, tokens)[1].num_tokens == 4


def test_a_running_request_is_shared_once_its_blocks_are_full():
    manager = make_manager()
    tokens = list(range(9))
    blocks, _ = run(manager, tokens)
    assert manager.match(manager.nothing_held(), tokens).num_tokens == 0
    manager.advance(blocks, tokens, 9)
    assert manager.match(manager.nothing_held(), tokens).num_tokens == 8


def test_without_caching_nothing_is_found():
    manager = make_manager(caching=False)
    leave(manager, list(range(20)))
    assert run(manager, list(range(20)))[1] == PrefixMatch(0, ((),))
    assert manager.stats.found == 0


def test_what_was_given_to_others_is_not_found():
    manager = make_manager(blocks=6)
    tokens = list(range(20))
    leave(manager, tokens)
    leave(manager, list(range(100, 112)))
    assert run(manager, tokens, end=9)[1].num_tokens in (8, 11)
    assert manager.pool.index.find(0, contents(tokens)[2].name) is None


def test_the_source_of_a_copy_is_not_given_out_in_the_same_step():
    manager = make_manager(blocks=7)
    leave(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    _, used = run(manager, [1, 2, 3, 4, 5, 9])
    assert used.sources == (2,)
    left = manager.pool.allocate(manager.pool.num_free)
    assert 2 not in left
    manager.take_copies()
    assert manager.pool.allocate(1) == (2,)


def test_a_copy_is_left_out_where_only_its_source_has_no_room():
    manager = make_manager(blocks=3)
    leave(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    blocks, used = run(manager, [1, 2, 3, 4, 5, 6, 7, 9])
    assert used == PrefixMatch(4, ((1,),))
    assert blocks.tables == ([1, 2],)
    assert run(manager, [7])[1] is None


def test_a_reserve_is_left_over():
    manager = make_manager(blocks=5)
    blocks = manager.nothing_held()
    match = manager.match(blocks, [1] * 12)
    assert manager.start(blocks, match, 12, reserve=2) is None
    assert manager.start(blocks, match, 12, reserve=1) == match


def test_blocks_below_a_window_go_back_and_keep_their_content():
    manager = make_manager(windows=(0, 6))
    tokens = list(range(24))
    blocks, _ = run(manager, tokens)
    before = manager.pool.num_free
    manager.advance(blocks, tokens, 16)
    gone = blocks_below_window(6, 16, SIZE)
    assert gone == 2
    assert manager.pool.num_free == before + gone
    assert blocks.tables[1][:3] == [0, 0, blocks.tables[1][2]]
    assert all(blocks.tables[0])
    manager.release(blocks, tokens, 24)
    assert manager.pool.num_free == manager.pool.capacity


def test_a_prefix_needs_only_what_is_in_the_window():
    manager = make_manager(blocks=60, windows=(0, 6))
    tokens = list(range(24))
    leave(manager, tokens)
    for place in (0, 1):
        manager.pool.index.forget(manager.pool.index.find(1, contents(tokens)[place].name))
    blocks, used = run(manager, [*tokens[:16], 99])
    assert used.num_tokens == 16
    assert blocks.tables[1][:2] == [0, 0]
    assert all(blocks.tables[1][2:])
    # A shorter one would need what is gone.
    assert run(manager, [*tokens[:12], 99])[1].num_tokens == 0


@pytest.mark.parametrize("window", [0, 1, 3, 4, 6, 9])
@given(chunks=st.lists(st.integers(1, 7), min_size=1, max_size=12))
def test_no_request_ever_holds_more_than_was_foreseen(window, chunks):
    manager = make_manager(blocks=60, windows=(window,), caching=False)
    blocks, computed, total = manager.nothing_held(), 0, sum(chunks)
    manager.start(blocks, PrefixMatch(0, ((),)), chunks[0])
    for chunk, following in zip(chunks, [*chunks[1:], 0], strict=True):
        assert len(blocks.held) <= manager.most_blocks(total, 7)
        computed += chunk
        manager.advance(blocks, [0] * total, computed)
        manager.extend(blocks, computed + following)


@given(st.integers(0, 2**32))
def test_any_life_of_requests_keeps_the_books(seed):
    """Blocks are held by exactly those whose tables name them, and equal contents are equal tokens."""
    draw = random.Random(seed)
    manager = make_manager(blocks=16, windows=draw.choice([(0,), (0, 5), (3,)]))
    live = []
    for _ in range(30):
        if live and draw.random() < 0.4:
            blocks, tokens, computed = live.pop(draw.randrange(len(live)))
            manager.release(blocks, tokens, computed)
        else:
            tokens = [draw.randrange(2) for _ in range(draw.randint(1, 14))]
            blocks = manager.nothing_held()
            match = manager.match(blocks, tokens)
            end = draw.randint(match.num_tokens + 1, len(tokens))
            if manager.start(blocks, match, end):
                live.append((blocks, tokens, end))
        manager.take_copies()
        for blocks, tokens, computed in live:
            manager.advance(blocks, tokens, computed)
        held = [block for blocks, _, _ in live for block in blocks.held]
        assert manager.pool.num_free == manager.pool.capacity - len(set(held))
        assert [manager.pool._holders[block] for block in range(16)] == [held.count(block) for block in range(16)]
