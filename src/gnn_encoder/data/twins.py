"""Finds twins: training queries with the same meaning. Twins share their positives and are masked together.

Texts that differ only in letter case, white space or Unicode composition (NFC) are always twins: all 1,131 twins among
MedQuAD's 13,677 training queries differ in letter case. Punctuation counts: "C" is not "C++".

Other queries are twins if the Jaccard similarity of their sets of words reaches `ingest.twin_similarity`. Ingestion
forms the groups, so that all steps agree. No model exists at ingestion, and later models have different vectors.

The threshold is off by default, because no cheap measure recognises equal meaning. On MedQuAD, 1.0 adds 85 queries
("Klippel-Feil syndrome" and "Klippel Feil syndrome"), 0.9 adds 162, and 0.8 joins 116 questions in one chain ("What is
(are) lung cancer ?", "What is (are) breast cancer ?"). Other measures err too: MiniLM gives "spinocerebellar ataxia 26"
and "21" a cosine of 0.98, TF-IDF gives "What causes Bartter syndrome ?" and "What is (are) Bartter syndrome ?" 0.9.

Cost for 500,000 random queries of 3 to 9 words: 1 s of processor time without a threshold, 9 s and 200 MB with 0.8.
"""

import re
import unicodedata
from array import array

import numpy as np

from gnn_encoder.artifacts.arrays import ranges

WORD = re.compile(r"\w+")
PAIRS = 2**18
"""Pairs of queries compared at a time."""
ROUNDING = 1e-6
"""Tolerance: the product of a threshold such as 2/3 and a count may be slightly above an integer."""


def twin_groups(texts: list[str], similarity: float) -> np.ndarray:
    """For each text the row of the first text in its group, int32 [n].

    Texts with a Jaccard similarity of at least `similarity` are in one group. Groups are connected components, so the
    two ends of a chain may be less similar. With 0, only equal texts are in one group.
    """
    first: dict[str, int] = {}
    folded = (" ".join(unicodedata.normalize("NFC", text).casefold().split()) for text in texts)
    groups = np.fromiter((first.setdefault(text, row) for row, text in enumerate(folded)), np.int32, len(texts))
    if similarity:
        rows = np.fromiter(first.values(), np.int32, len(first))
        _, leader, part = np.unique(_components(list(first), similarity), return_index=True, return_inverse=True)
        groups = rows[leader[part]][np.searchsorted(rows, groups)]
    return groups


def _components(texts: list[str], similarity: float) -> np.ndarray:
    """The number of each text's connected component, int [n]; pairs that share enough words are connected.

    The result is exact although few pairs are compared. If the Jaccard similarity of two sets is at least t, they share
    a word that is among the |x| − ⌈t·|x|⌉ + 1 rarest words of each set x (prefix filter; Chaudhuri, Ganti and Kaushik,
    2006).
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    vocabulary: dict[str, int] = {}
    words, indptr = array("i"), array("q", [0])
    for text in texts:
        words.extend(vocabulary.setdefault(word, len(vocabulary)) for word in dict.fromkeys(WORD.findall(text)))
        indptr.append(len(words))
    n, word, begins = len(texts), np.asarray(words), np.asarray(indptr)
    sets = csr_array((np.ones(len(word), np.int32), word, begins), shape=(n, len(vocabulary)))
    size = np.diff(begins)
    row = np.repeat(np.arange(n), size)
    # The words of each text, rarest first. Only the first few words are looked up in other texts.
    order = np.lexsort((word, np.bincount(word, minlength=len(vocabulary))[word], row))
    rare = size - np.ceil(similarity * size - ROUNDING) + 1
    order = order[np.arange(len(word)) - begins[row] < rare[row]]
    order = order[np.argsort(word[order], kind="stable")]
    # An entry is compared with the entries of the same word that follow it.
    row, starts = row[order], np.arange(1, len(order) + 1)
    stops = np.searchsorted(word[order], word[order], side="right")
    components = np.arange(n)
    chunk = np.cumsum(stops - starts) // PAIRS
    for some in np.split(np.arange(len(order)), np.flatnonzero(np.diff(chunk)) + 1):
        left, right = np.repeat(row[some], (stops - starts)[some]), row[ranges(starts[some], stops[some])]
        apart = components[left] != components[right]
        left, right = left[apart], right[apart]
        common = sets[left].multiply(sets[right]).sum(axis=1)
        alike = common >= similarity * (size[left] + size[right] - common) - ROUNDING
        edges = np.ones(int(alike.sum())), (components[left[alike]], components[right[alike]])
        components = connected_components(csr_array(edges, shape=(n, n)), directed=False)[1][components]
    return components
