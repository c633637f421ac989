"""Sections that are known only from their parts' paths: each distinct path, and each beginning of one, is a node."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.data.places import SEPARATOR, TEXT

LAST_PART = f"{SEPARATOR}[^{SEPARATOR}]*$"


@dataclass
class SectionTree:
    """Sections by path: ids, own titles and ids of documents (text [k]); rows of parents int64 [k], -1: top section."""

    ids: pa.Array
    titles: pa.Array
    documents: pa.Array
    parent: np.ndarray


def section_tree(paths: pa.Array, titles: pa.Array) -> SectionTree:
    """The sections of distinct paths (as in `places`), in their order, and then of the beginnings of these paths.

    `titles` has for each path a list of the titles of its parts. Where the list is shorter than the path, or null, the
    last part of a path is its title.
    """
    levels = [(paths, titles)]
    known = paths
    while len(levels[-1][0]):
        below, below_titles = levels[-1]
        inner = pc.greater(pc.count_substring(below, SEPARATOR), 1)
        above, above_titles = _without_last(below.filter(inner)), below_titles.filter(inner)
        coded = above.dictionary_encode()
        first = np.unique(coded.indices.to_numpy(zero_copy_only=False), return_index=True)[1]
        fresh = pc.index_in(coded.dictionary, value_set=known).is_null()
        levels.append((coded.dictionary.filter(fresh), above_titles.take(pa.array(first)).filter(fresh)))
        known = pa.concat_arrays([known, levels[-1][0]])
    lists = pa.concat_arrays([lists_of_level for _, lists_of_level in levels])
    length = pc.count_substring(known, SEPARATOR)
    section_titles = pc.replace_substring_regex(known, f"(?s)^.*{SEPARATOR}", "")
    for level in range(1, int(pc.max(length).as_py() or 0) + 1):
        at_level = pc.and_(
            pc.equal(length, level), pc.greater_equal(pc.fill_null(pc.list_value_length(lists), 0), level)
        )
        listed_titles = pc.coalesce(
            pc.list_element(lists.filter(at_level), level - 1), section_titles.filter(at_level).cast(pa.string())
        )
        section_titles = pc.replace_with_mask(section_titles, at_level, listed_titles.cast(TEXT))
    parent = pc.index_in(_without_last(known), value_set=known).fill_null(-1)
    return SectionTree(
        pc.replace_substring(known, SEPARATOR, " > "),
        section_titles,
        pc.replace_substring_regex(known, f"(?s){SEPARATOR}.*$", ""),
        parent.to_numpy(zero_copy_only=False).astype(np.int64),
    )


def _without_last(paths: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(paths, LAST_PART, "")
