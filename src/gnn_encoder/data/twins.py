"""Finds twins: training queries with the same meaning. Twins share their positives and are masked together.
Counts recurring queries: those that nearly equal another one, also in another split.

Equal texts (`texts.folded`) are always twins: all 1,131 twins among
MedQuAD's 13,677 training queries differ in letter case. Punctuation counts: "C" is not "C++".

Other queries are twins if the Jaccard similarity of their sets of words (`artifacts.words`, with single letters)
reaches `ingest.twin_similarity`. Ingestion forms the groups, so that all steps agree. No model exists at ingestion, and
later models have different vectors.

The threshold is off by default, because no cheap measure recognises equal meaning. On MedQuAD, 1.0 adds 85 queries
("Klippel-Feil syndrome" and "Klippel Feil syndrome"), 0.9 adds 162, and 0.8 joins 116 questions in one chain ("What is
(are) lung cancer ?", "What is (are) breast cancer ?"). Other measures err too: MiniLM gives "spinocerebellar ataxia 26"
and "21" a cosine of 0.98, TF-IDF gives "What causes Bartter syndrome ?" and "What is (are) Bartter syndrome ?" 0.9.

Cost for 500,000 random queries of 3 to 9 words out of 50,000: 0.4 s of processor time without a threshold, 4 s and
200 MB with 0.8; a minute if most words are among a few frequent ones.
"""

from array import array
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.artifacts.texts import folded_column
from gnn_encoder.artifacts.words import words as words_of

PAIRS = 2**18
"""Pairs of queries compared at a time."""
ROUNDING = 1e-6
"""Tolerance: the product of a threshold such as 2/3 and a count may be slightly above an integer."""


def twin_groups(texts: list[str], similarity: float) -> np.ndarray:
    """For each text the row of the first text in its group, int32 [n].

    Texts with a Jaccard similarity of at least `similarity` are in one group. Groups are connected components, so the
    two ends of a chain may be less similar. With 0, only equal texts are in one group.
    """
    forms, part = _distinct(texts)
    if similarity:
        part = components(forms, similarity)[part]
    _, first, group = np.unique(part, return_index=True, return_inverse=True)
    return first[group].astype(np.int32)


def _distinct(texts: list[str]) -> tuple[list[str], np.ndarray]:
    """The distinct forms of texts when `folded`, and the number of each text's form, int [n]."""
    coded = folded_column(pa.array(texts, pa.string())).dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy()


def components(texts: list[str], similarity: float) -> np.ndarray:
    """The number of each text's connected component, int [n]; pairs that share enough words are connected."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    components = np.arange(len(texts))

    def apart(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.asarray(components[left] != components[right])

    for pair in similar_pairs(texts, similarity, apart):
        left, right = components[pair]
        edges = csr_array((np.ones(len(left)), (left, right)), shape=(len(texts),) * 2)
        components[:] = connected_components(edges, directed=False)[1][components]
    return components


def similar_pairs(
    texts: list[str], similarity: float, wanted: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Iterator[np.ndarray]:
    """Yields the rows int [2, c] of pairs of texts whose sets of words have at least this Jaccard similarity.

    `wanted` gets the rows [c] of both texts of possible pairs and says which are compared, bool [c]; it may change
    between two yields. A pair may come more than once.

    The result is exact although few pairs are compared. If the Jaccard similarity of two sets is at least t, they share
    a word that is among the |x| − ⌈t·|x|⌉ + 1 rarest words of each set x (prefix filter; Chaudhuri, Ganti and Kaushik,
    2006). They share at least t / (1 + t) · (|x| + |y|) words; if the rarest shared word is the i-th of x and the j-th
    of y, they share at most 1 + min(|x| − i, |y| − j) (positional filter; Xiao, Wang, Lin and Yu, 2008).
    """
    from scipy.sparse import csr_array

    vocabulary: dict[str, int] = {}
    words, indptr = array("i"), array("q", [0])
    for text in texts:
        words.extend(vocabulary.setdefault(word, len(vocabulary)) for word in dict.fromkeys(words_of(text, shortest=1)))
        indptr.append(len(words))
    n, word, begins = len(texts), np.asarray(words), np.asarray(indptr)
    sets = csr_array((np.ones(len(word), np.int32), word, begins), shape=(n, len(vocabulary)))
    size = np.diff(begins)
    row = np.repeat(np.arange(n), size)
    # The words of each text, rarest first. Only the first few words are looked up in other texts.
    order = np.lexsort((word, np.bincount(word, minlength=len(vocabulary))[word], row))
    rare = size - np.ceil(similarity * size - ROUNDING) + 1
    after = size[row] - (np.arange(len(word)) - begins[row])  # the word and the more frequent words of its text
    early = size[row] - after < rare[row]
    order, after = order[early], after[early]
    by_word = np.argsort(word[order], kind="stable")
    order, after = order[by_word], after[by_word]
    # An entry is compared with the entries of the same word that follow it.
    row, starts = row[order], np.arange(1, len(order) + 1)
    stops = np.searchsorted(word[order], word[order], side="right")
    needed = similarity / (1 + similarity)
    chunk = np.cumsum(stops - starts) // PAIRS
    for members in np.split(np.arange(len(order)), np.flatnonzero(np.diff(chunk)) + 1):
        first, second = np.repeat(members, (stops - starts)[members]), ranges(starts[members], stops[members])
        left, right = row[first], row[second]
        is_similar = np.minimum(after[first], after[second]) >= needed * (size[left] + size[right]) - ROUNDING
        left, right = left[is_similar], right[is_similar]
        compared = wanted(left, right)
        left, right = left[compared], right[compared]
        common = sets[left].multiply(sets[right]).sum(axis=1)
        alike = common >= similarity * (size[left] + size[right] - common) - ROUNDING
        yield np.stack([left[alike], right[alike]])


def recurring(texts: list[str], kind: np.ndarray, kinds: int, similarity: float) -> np.ndarray:
    """Whether another text of each kind nearly equals each of the n texts, bool [n, kinds].

    Args:
        texts: n texts.
        kind: int [n], the kind of each text (its split), from 0.
        kinds: number of kinds.
        similarity: texts with at least this Jaccard similarity nearly equal each other; so do equal texts.
    """
    forms, form_row = _distinct(texts)
    count = np.zeros((len(forms), kinds), np.int64)
    np.add.at(count, (form_row, kind), 1)
    there, near = count > 0, np.zeros(count.shape, bool)

    def wanted(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.asarray(((there[right] & ~near[left]) | (there[left] & ~near[right])).any(axis=1))

    for left, right in similar_pairs(forms, similarity, wanted) if similarity else ():
        for one, other in ((left, right), (right, left)):
            np.logical_or.at(near, one, there[other])
    others = count[form_row]
    others[np.arange(len(texts)), kind] -= 1
    return np.asarray(near[form_row] | (others > 0))
