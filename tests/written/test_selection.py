"""Copies and quotations among written queries, and the splits of units."""

import math

import numpy as np
import pytest

from gnn_encoder.written import selection
from gnn_encoder.written.selection import later_copies, quotes, splits_of


def test_near_copies_of_earlier_ones_are_found() -> None:
    random, vocabulary = np.random.default_rng(0), [f"w{i}" for i in range(12)]
    texts = [" ".join(random.choice(vocabulary, random.integers(2, 6), replace=False)) for _ in range(80)]
    kept: list[set[str]] = []
    expected = []
    for text in texts:
        some = set(text.split())
        expected.append(any(len(some & other) >= 0.6 * len(some | other) for other in kept))
        if not expected[-1]:
            kept.append(some)
    assert later_copies(texts, 0.6).tolist() == expected and 0 < sum(expected) < 80


def test_a_quotation_of_the_beginning_is_seen() -> None:
    opening = "The quick brown fox jumps over the lazy dog today"
    assert quotes("the QUICK brown", opening, 4) and quotes("so the quick brown fox ran", opening, 4)
    assert not quotes("so the quick brown cat", opening, 4) and not quotes("jumps over the lazy dog", opening, 4)


SHARES = {2: 0.2, 1: 0.1}
"""Of test and dev."""


def test_more_units_move_none_to_another_split() -> None:
    units = [f"u{i}.md" for i in range(60)]
    before, after = (splits_of(dict.fromkeys(some, 1), SHARES, 0) for some in (units[::2], units))
    assert {unit: after[unit] for unit in before} == before and set(before.values()) == {0, 1, 2}


@pytest.mark.parametrize("off", [0.5, math.inf])
def test_twenty_documents_of_unlike_size_are_near_the_shares(off: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control allows any share: by hashes alone, a split is empty or the largest."""
    monkeypatch.setattr(selection, "OFF", off)
    held: dict[int, list[float]] = {code: [] for code in SHARES}
    moved = 0
    for seed in range(50):
        sizes = np.random.default_rng(seed).lognormal(3, 1.5, 20).astype(int) + 1
        queries = {f"{seed}-{i}.md": int(size) for i, size in enumerate(sizes)}
        split = splits_of(queries, SHARES, 0)
        for code in SHARES:
            held[code].append(sum(count for unit, count in queries.items() if split[unit] == code) / sizes.sum())
        later = splits_of({**queries, "later.md": int(np.median(sizes))}, SHARES, 0)
        moved += sum(later[unit] != code for unit, code in split.items())
    is_near = [0.5 * of <= document <= 1.5 * of for code, of in SHARES.items() for document in held[code]]
    assert moved / 50 < 0.5, "a later document moves few of the others"
    assert np.mean(is_near) >= 0.98 if off == 0.5 else np.mean(is_near) < 0.7


@pytest.mark.parametrize("off", [0.5, math.inf])
def test_one_large_document_leaves_each_split_some_queries(off: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four small documents beside it are less than test's share: test does not take those that dev needs, too."""
    monkeypatch.setattr(selection, "OFF", off)
    for seed in range(50):
        split = splits_of({f"{seed}-large.md": 1000, **{f"{seed}-{i}.md": 1 for i in range(4)}}, SHARES, 0)
        assert set(split.values()) == {0, 1, 2}
        assert off > 1 or split[f"{seed}-large.md"] == 0
