"""The tree of a document's parts, as an array of parents: depths, cycles, reading order, and cuts.

`depths` and `owners` follow all nodes at once by pointer doubling: after k rounds a node's pointer is 2^k parents
further up, so a chain of a million sections takes 20 rounds. `parent` is int [n], -1 at a root.
"""

import numpy as np

LAST = np.iinfo(np.int64).max
"""The order of sections that have no order and no passage: they are at the end."""


def depths(parent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of each node's ancestors, int64 [n], and the rows of nodes that are their own ancestors.

    The depth of nodes that are on a cycle or below one means nothing.
    """
    above, depth = parent.astype(np.int64), (parent >= 0).astype(np.int64)
    for _ in range(len(parent).bit_length()):
        rows = np.flatnonzero(above >= 0)
        if not len(rows):
            break
        depth[rows] += depth[above[rows]]
        above[rows] = above[above[rows]]
    # 2^rounds > n: a path that has not ended after so many parents has reached a cycle, and stays on it.
    return depth, np.unique(above[above >= 0])


def positions(
    document: np.ndarray, parent: np.ndarray, depth: np.ndarray, order: np.ndarray, known: np.ndarray
) -> np.ndarray:
    """Each node's position in its document, int32 [n]: by `order` int64 [n] where it is `known`, bool [n].

    A node of unknown order comes before the first of its parts; without parts it is at the end. A part comes after the
    node that it is a part of if both have the same order. Else equal orders are in the order of the rows.
    """
    order = np.where(known, order, LAST)
    parts = np.flatnonzero(parent >= 0)
    parts = parts[~known[parent[parts]]]
    parts = parts[np.argsort(-depth[parts], kind="stable")]
    for level in np.split(parts, np.flatnonzero(np.diff(depth[parts])) + 1):  # from the deepest to the top
        np.minimum.at(order, parent[level], order[level])
    rows = np.lexsort((np.arange(len(order)), depth, order, document))
    position = np.empty(len(order), dtype=np.int32)
    counts = np.bincount(document)
    position[rows] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return position


def owners(parent: np.ndarray, depth: np.ndarray, levels: int) -> np.ndarray:
    """For each node the row of its nearest section among the first `levels` levels of the tree, int64 [n]; -1: none.

    A section is a node that has parts; it is its own owner.
    """
    n = len(parent)
    has_parts = np.zeros(n, dtype=bool)
    has_parts[parent[parent >= 0]] = True
    top = has_parts & (depth < levels)
    owner = np.append(np.where(top, np.arange(n), parent), -1)  # the last entry is where -1 leads
    for _ in range(n.bit_length()):
        further = owner[owner]
        if (further == owner).all():
            break
        owner = further
    return owner[:n]
