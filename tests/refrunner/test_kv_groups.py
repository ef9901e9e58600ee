"""Layers are grouped by window, and blocks below a window are counted."""

import pytest

from mrv2.refrunner.kv_groups import KVGroups, blocks_below_window

LAYERS = {
    "full": ((0, 0, 0), KVGroups((0,), (0, 0, 0), (0, 1, 2))),
    "alternating": ((8, 0, 8, 0), KVGroups((0, 8), (1, 0, 1, 0), (0, 0, 1, 1))),
    "one in three": ((8, 8, 0), KVGroups((0, 8), (1, 1, 0), (0, 1, 0))),
    "no full attention": ((16, 4), KVGroups((4, 16), (1, 0), (0, 0))),
}


@pytest.mark.parametrize("layers", LAYERS)
def test_groups_of_layers(layers):
    windows, expected = LAYERS[layers]
    groups = KVGroups.of_layers(windows)
    assert groups == expected
    # No two layers of one group share a place in the cache, and no place is spare in the largest group.
    assert len(set(zip(groups.group_of_layer, groups.index_in_group, strict=True))) == len(windows)
    assert groups.layers_per_group == max(groups.group_of_layer.count(g) for g in groups.group_of_layer)


@pytest.mark.parametrize("window", [0, 1, 4, 5, 9])
@pytest.mark.parametrize("block_size", [1, 4])
def test_a_block_is_below_the_window_if_no_later_token_sees_any_of_it(window, block_size):
    for position in range(30):
        unseen = [p for p in range(30) if window and p < position - window + 1]
        whole = [b for b in range(30) if all(p in unseen for p in range(b * block_size, (b + 1) * block_size))]
        assert blocks_below_window(window, position, block_size) == len(whole)
