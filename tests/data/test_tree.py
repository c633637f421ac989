"""Depths, cycles and owners in trees of sections."""

import random

import numpy as np

from gnn_encoder.data.tree import depths, owners, positions


def test_the_tree_equals_plain_loops_on_random_forests() -> None:
    draw = random.Random(3)
    for n in range(1, 60):
        parent = np.array(
            [draw.randint(-1, n - 1) if draw.random() < 0.3 else draw.randint(-1, i - 1) for i in range(n)]
        )
        ancestors = []
        for node in range(n):
            chain = []
            while parent[node if not chain else chain[-1]] >= 0 and len(chain) <= n:
                chain.append(int(parent[node if not chain else chain[-1]]))
            ancestors.append(chain)
        cyclic = [node for node in range(n) if node in ancestors[node]]
        depth, in_cycle = depths(parent)
        assert in_cycle.tolist() == cyclic
        fine = [node for node in range(n) if len(ancestors[node]) <= n]
        assert [depth[node] for node in fine] == [len(ancestors[node]) for node in fine]
        if len(fine) < n:
            continue
        for levels in (1, 2, 3):
            tops = {int(p) for p in parent if p >= 0 and depth[p] < levels}
            expected = [next((a for a in [node, *ancestors[node]] if a in tops), -1) for node in range(n)]
            assert owners(parent, depth, levels).tolist() == expected


def test_a_chain_of_many_sections_is_fast() -> None:
    parent = np.arange(-1, 300_000 - 1)
    depth, cyclic = depths(parent)
    assert not len(cyclic) and (depth == np.arange(len(parent))).all()
    assert (positions(np.zeros(5, int), parent[:5], depth[:5], np.full(5, 7), np.arange(5) > 3) == np.arange(5)).all()
