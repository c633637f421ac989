"""Finds passages of equal text (`texts.folded`, of title and text). A copy of a query's positive is no negative of it.

A corpus is streamed, so a passage cannot be compared with earlier ones. Kept are 8 bytes of each: the sum, over all
characters of its text, of a random number for each character. Equal texts have equal sums, whatever the form of their
characters (`Sums`). Passages with a sum that occurs again are read a second time, and 16 bytes of each are compared:
digests of their folded texts. Folding and digesting every passage would take as long as ingestion itself.

Cost for a passage of 370 ASCII characters: 0.7 µs of processor time, 8 % of ingestion from MS MARCO's layout. In other
scripts a passage of as many bytes takes up to 4 µs. A passage that is read again takes 5 to 40 µs.

Near-copies (`ingest.copy_similarity`) need all texts in memory, and pairs of passages with a rare word in common are
compared: 50,000 synthetic passages of 56 words took 11 s and 0.5 GB with 0.8, and the time grows with the square.
"""

import sys
import unicodedata
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import PassageTable
from gnn_encoder.artifacts.passages import BATCH
from gnn_encoder.artifacts.texts import folded, folded_column
from gnn_encoder.data.twins import components

CHUNK = 2**17
"""Bytes of text whose numbers are in memory at a time; they fit into a processor's cache."""
ASCII = 128


class Sums:
    """Numbers uint64 [n] of n texts; texts that are equal when `folded` have one number.

    Folding replaces and reorders characters one by one: a character and its `folded` form consist of the same letters
    after canonical decomposition, and so do both sides of each normalization. So the sum of a text's letters stays the
    same. Texts of the same letters in another order have one number, too.
    """

    def __init__(self) -> None:
        self._number = np.zeros(sys.maxunicode + 1, np.uint64)
        self._known = np.zeros(sys.maxunicode + 1, bool)
        self._learn(np.arange(ASCII))
        self._byte = np.where(np.arange(256) < ASCII, self._number[:256], np.uint64(0))
        self._pair = (self._byte[:, None] + self._byte).ravel()
        self._total = np.zeros(1, np.uint64)

    def of(self, texts: pa.ChunkedArray) -> np.ndarray:
        """The numbers of a column of strings without null."""
        return np.concatenate([np.empty(0, np.uint64), *map(self._of_chunk, texts.chunks)])

    def _of_chunk(self, texts: pa.StringArray) -> np.ndarray:
        _, ends, data = texts.buffers()
        sums = np.zeros(len(texts), np.uint64)
        if data is None:
            return sums
        begin = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
        content = np.frombuffer(data, np.uint8)
        if begin[0] == begin[-1]:
            return sums
        rows = np.unique(np.append(np.searchsorted(begin, np.arange(begin[0], begin[-1], CHUNK)), len(texts)))
        for first, last in zip([0, *rows[:-1].tolist()], rows.tolist(), strict=True):
            offsets = begin[first : last + 1]
            sums[first:last] = np.diff(self._before(content[offsets[0] : offsets[-1]], offsets - offsets[0]))
        return sums

    def _before(self, content: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The sum uint64 [e] of all characters before each of the places `ends` [e] in a UTF-8 text."""
        pairs = content[: len(content) & ~1].view(np.uint16)  # two bytes at a time: that takes half as long
        if len(self._total) <= len(pairs):
            self._total = np.zeros(len(pairs) + 1, np.uint64)
        of_pairs = self._total[1 : len(pairs) + 1]  # new memory would take as long as the work
        np.take(self._pair, pairs, out=of_pairs, mode="clip")
        np.cumsum(of_pairs, out=of_pairs)
        before: np.ndarray = self._total[ends >> 1]
        odd = (ends & 1) == 1
        before[odd] += self._byte[content[ends[odd] - 1]]
        if len(content) and content.max() >= ASCII:
            codes = np.frombuffer(content[content >= ASCII].tobytes().decode().encode("utf-32-le"), np.uint32)
            if len(new := codes[~self._known[codes]]):
                self._learn(np.unique(new))
            first_bytes = np.flatnonzero(content >= 0xC0)
            of_codes = np.append(np.uint64(0), np.cumsum(self._number[codes]))
            before += of_codes[np.searchsorted(first_bytes, ends)]
        return before

    def _learn(self, codes: np.ndarray) -> None:
        for code in codes.tolist():
            letters = unicodedata.normalize("NFKD", folded(chr(code))).replace(" ", "")
            numbers = (int.from_bytes(blake2b(letter.encode(), digest_size=8).digest()) for letter in letters)
            self._number[code], self._known[code] = sum(numbers) % 2**64, True


class SecondReading:
    """The texts of some passages, read again: digests of their folded texts, and the folded texts for near-copies.

    Args:
        rows: int64 [c], ascending. texts: whether to keep the folded texts, too.
    """

    def __init__(self, rows: np.ndarray, texts: bool = False) -> None:
        self._rows, self._seen = rows, 0
        self._digests = bytearray()
        self.texts: list[str] | None = [] if texts else None

    @property
    def digests(self) -> np.ndarray:
        """[c], of 16 bytes each."""
        return np.frombuffer(self._digests, "V16")

    def read(self, corpus: Path) -> None:
        """Takes all of these passages from a file of passages (`artifacts.passages`)."""
        table = PassageTable(corpus)
        for start in range(0, len(self._rows), BATCH):
            self._add(pa.array(table.take(self._rows[start : start + BATCH]).full_texts(), pa.string()))

    def passages(self, ids: pa.ChunkedArray, titles: pa.ChunkedArray, texts: pa.ChunkedArray) -> None:
        """Takes the next passages, with those of `rows` among them; as `DatasetWriter.passages`."""
        last = self._seen + len(ids)
        inside = self._rows[np.searchsorted(self._rows, self._seen) : np.searchsorted(self._rows, last)] - self._seen
        self._seen = last
        if len(inside):
            places = pa.array(inside)
            self._add(pc.binary_join_element_wise(titles.take(places), texts.take(places), " "))

    def _add(self, texts: pa.Array | pa.ChunkedArray) -> None:
        for form in folded_column(texts).to_pylist():
            self._digests += blake2b(form.encode(), digest_size=16).digest()
            if self.texts is not None:
                self.texts.append(form)


def passage_groups(sums: np.ndarray, read: Callable[[SecondReading], None], similarity: float) -> np.ndarray | None:
    """For each passage the row of the first passage in its group, int32 [m]; None if each is alone in its group.

    Args:
        sums: uint64 [m], the passages' numbers by `Sums`.
        read: fills a second reading.
        similarity: passages whose sets of words have at least this Jaccard similarity are in one group, too; groups are
            connected components. 0: equal texts alone.
    """
    ordered = np.sort(sums)
    rows = np.flatnonzero(np.isin(sums, ordered[1:][ordered[1:] == ordered[:-1]]))
    groups = np.arange(len(sums), dtype=np.int32)
    if len(rows):
        read(reading := SecondReading(rows))
        _, first, part = np.unique(reading.digests, return_index=True, return_inverse=True)
        groups[rows] = rows[first[part]]
    if similarity:
        rows = np.flatnonzero(groups == np.arange(len(groups)))
        read(reading := SecondReading(rows, texts=True))
        assert reading.texts is not None
        near = np.arange(len(groups), dtype=np.int32)
        _, first, part = np.unique(components(reading.texts, similarity), return_index=True, return_inverse=True)
        near[rows] = rows[first[part]]
        groups = near[groups]
    return groups if (groups != np.arange(len(groups))).any() else None
