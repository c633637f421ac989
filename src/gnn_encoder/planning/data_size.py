"""Sizes of a data set, measured or assumed, for the forecast of the disk that a run takes."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gnn_encoder.artifacts import Dataset
from gnn_encoder.data import temporary_dataset
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone import load_tokenizer
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.written import SelectQueries, WriteQueries

SAMPLE, TOKENIZED, QUERIES = 2000, 500, 20
"""Passages in the sample that is measured (texts and ids), about how many of them are tokenized, and queries in the
run that its ids are written to."""
TOKENIZER, UNCUT = "minilm", 2**20
"""The packaged tokenizer, BERT's, and a length to which no passage is cut."""
PASSAGE_BYTES, PASSAGE_TOKENS, QUERY_BYTES = 340, 57, 40
"""Text of a passage and of a query, if the data are not there: MS MARCO's; and tokens, at 6.2 bytes as in `obliqa`."""
LABELS_PER_QUERY = 1.1
KEPT = 0.5
"""Share of the written queries that pass the filters, about."""
PACKED = 0.5
"""Share of a text's bytes that Parquet's compression leaves, if the data are not there."""


@dataclass(frozen=True)
class DataSize:
    """Sizes of a data set.

    passages, queries, labels  the counts; queries by split, `labels` are those of training queries
    most_labels                most labels of a training query
    dataset                    bytes of the data set's folder
    text, query_text           mean bytes of a passage and of a query
    tokens                     int64, the tokens of a sample of the passages by BERT's tokenizer, uncut
    trec                       bytes of a compressed line of a TREC run
    """

    passages: int
    queries: Mapping[str, int]
    labels: int
    most_labels: int
    dataset: int
    text: float
    query_text: float
    tokens: np.ndarray
    trec: float

    @classmethod
    def of(cls, data: Dataset, seed: int = 0) -> "DataSize":
        """Measures a data set: counts, and texts and ids of a sample."""
        m, random = len(data.passages), np.random.default_rng(seed)
        sample = data.passages.take(np.sort(random.permutation(m)[:SAMPLE]))
        queries = {split: data.query_rows(split) for split in ("train", "dev", "test")}
        query_texts = data.query_texts(np.sort(random.permutation(len(data.queries))[:SAMPLE]))
        texts = sample.full_texts()
        tokenized = texts[:: max(1, len(texts) // TOKENIZED)]
        train = data.split_qrels("train").positive()
        per_query = np.unique(train.query, return_counts=True)[1]
        return cls(
            passages=m,
            queries={split: len(rows) for split, rows in queries.items()},
            labels=len(train.query),
            most_labels=int(per_query.max(initial=1)),
            dataset=sum(file.stat().st_size for file in data.path.rglob("*") if file.is_file()),
            text=float(np.mean([len(text.encode()) for text in texts])),
            query_text=float(np.mean([len(text.encode()) for text in query_texts])) if query_texts else 0.0,
            tokens=Tokens.of(load_tokenizer(TOKENIZER), tokenized, UNCUT).lengths,
            trec=_trec_line(data.queries["query_id"].to_pylist()[:QUERIES] or range(QUERIES), sample.ids, random),
        )

    @classmethod
    def read(cls, settings: Settings) -> "DataSize":
        """Reads a data set as `ingest` would, into the folder for temporary files; a UserError if that would fail.

        With a generator it has about the queries that will be written and selected.
        """
        ingest, write = settings.ingest_of(True), settings.write_queries
        with temporary_dataset(ingest) as (data, _):
            size = cls.of(data, ingest.seed)
        queries = with_written(size.queries, size.passages, write, settings.select_queries)
        labels = size.labels + queries["train"] - size.queries["train"]
        return replace(size, queries=queries, labels=labels, query_text=size.query_text or QUERY_BYTES)

    @classmethod
    def assumed(cls, passages: int, queries: int) -> "DataSize":
        """Sizes of data of which only the counts are known: texts are as long as MS MARCO's, and ids are row numbers.

        One query in a hundred is a dev query, and one a test query.
        """
        held, random = max(1, queries // 100), np.random.default_rng(0)
        texts = PACKED * (passages * PASSAGE_BYTES + queries * QUERY_BYTES)
        labels = int(LABELS_PER_QUERY * queries)
        counts = {"train": queries - 2 * held, "dev": held, "test": held}
        return cls(
            passages, counts, labels, 2, int(texts), PASSAGE_BYTES, QUERY_BYTES, np.array([PASSAGE_TOKENS]),
            _trec_line(range(QUERIES), np.unique(random.integers(0, passages, SAMPLE)).tolist(), random),
        )  # fmt: skip


def with_written(
    queries: Mapping[str, int], passages: int, write: WriteQueries, select: SelectQueries
) -> dict[str, int]:
    """Returns the numbers of queries by split as expected once some were written and selected.

    Without a generator they are `queries`.
    """
    if not write.generator:
        return {**queries}
    kept = int(KEPT * write.per_passage * write.passages_of(passages)[0])
    shares = {"dev": select.dev_fraction, "test": select.test_fraction}
    evaluated = {
        split: queries[split] or min(int(share * kept), select.max_evaluated or kept) for split, share in shares.items()
    }
    train = min(kept - sum(evaluated[split] for split in shares if not queries[split]), select.max_train or kept)
    return {"train": queries["train"] + max(train, 0), **evaluated}


def _trec_line(queries: Iterable[object], passages: Sequence[object], random: np.random.Generator) -> float:
    """Returns the bytes of a compressed line of a run, of a run with chance passages and scores."""
    lines = []
    for query in queries:
        hits = random.permutation(len(passages))[: SAMPLE // QUERIES]
        scores = np.sort(random.normal(0.5, 0.1, len(hits)).astype(np.float32))[::-1]
        for rank, (hit, score) in enumerate(zip(hits, scores, strict=True), 1):
            lines.append(f"{query} Q0 {passages[hit]} {rank} {score:.9g} System\n")
    return len(zlib.compress("".join(lines).encode())) / len(lines)
