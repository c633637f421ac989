"""What the plan of a run depends on: the data's sizes, lengths and labels."""

from dataclasses import dataclass

import numpy as np

from gnn_encoder.artifacts import Dataset
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone import load_tokenizer
from gnn_encoder.models.backbone_files import sentence_transformers_layout, transformer_of
from gnn_encoder.settings.shared import LongPassages, shared_tokens

SAMPLE = 600
"""Passages, and queries, whose tokens are counted."""
CUT = LongPassages()
LONGEST, UNCUT = 512, 2**20
"""Tokens to which these texts are cut, and passages of which all windows are read."""
UNKNOWN_QUERY = 16
"""Tokens of a query where there are none yet."""


@dataclass(frozen=True)
class DataFacts:
    """Sizes of a data set.

    passages, queries   the counts; `queries` are those with a label, by split
    labels              pairs of a training query and a relevant passage
    shared              share of the training labels whose passage is relevant to another training query, too
    passage_tokens      int64, ascending, the tokens of a sample of the passages, with special tokens
    query_tokens        the same of queries
    drawn               labelled training queries that the user's `ingest.max_trained_queries` draws; 0: it is not set
    reading             how dual encoders read long passages
    """

    passages: int
    queries: dict[str, int]
    labels: int
    shared: float
    passage_tokens: np.ndarray
    query_tokens: np.ndarray
    drawn: int = 0
    reading: LongPassages = CUT

    @property
    def measured(self) -> int:
        """Number of dev and test queries."""
        return self.queries["dev"] + self.queries["test"]

    def mean_passage(self, length: int) -> float:
        """Mean number of tokens of a passage that is cut to `length`."""
        return float(np.minimum(self.passage_tokens, length).mean())

    def mean_read(self, length: int) -> float:
        """Mean number of tokens that an encoding of the corpus reads of a passage, in windows of `length`."""
        whole, first = self.passage_tokens, self.mean_passage(length)
        if self.reading.long_passages == "late":  # the first window is read alone, too
            return first + float(whole.mean())
        if self.reading.long_passages == "cut":
            return first
        overlap = shared_tokens(self.reading.window_overlap, length)
        further = np.ceil(np.maximum(whole - length, 0) / (length - overlap))
        return float((whole + further * overlap).mean())

    def mean_query(self, length: int) -> float:
        """The same of a query."""
        return float(np.minimum(self.query_tokens, length).mean())


def data_facts(data: Dataset, backbone: str, seed: int, reading: LongPassages = CUT) -> DataFacts:
    """Counts a data set, with the tokens of the backbone's tokenizer."""
    generator = np.random.default_rng(seed)
    tokenizer = load_tokenizer(transformer_of(backbone, sentence_transformers_layout(backbone)))
    passage_rows = np.sort(generator.permutation(len(data.passages))[:SAMPLE])
    texts = data.passages.take(passage_rows).full_texts()
    query_rows = np.sort(generator.permutation(len(data.queries))[:SAMPLE])
    of_passages, of_queries = (
        np.sort(Tokens.of(tokenizer, sample, most).lengths) if sample else np.array([UNKNOWN_QUERY])
        for sample, most in ((texts, UNCUT if reading.in_windows else LONGEST), (data.query_texts(query_rows), LONGEST))
    )
    train = data.split_qrels("train").positive()
    counts = {split: len(labelled_queries(data.judged(split))) for split in ("train", "dev", "test")}
    per_passage = np.bincount(train.passage, minlength=len(data.passages))
    shared = float((per_passage[train.passage] > 1).mean()) if len(train.passage) else 0.0
    trained = len(np.unique(data.trained_labels.query))
    drawn = trained if trained < counts["train"] else 0
    lengths = of_passages, of_queries
    return DataFacts(len(data.passages), counts, len(train.passage), shared, *lengths, drawn, reading)
