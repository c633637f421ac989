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
"""Passages, queries, and labels' passages, whose tokens are counted."""
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
    labelled_tokens     the same of the relevant passages of a sample of the labels, which may be longer than others
    drawn               labelled training queries that the user's `ingest.max_trained_queries` draws; 0: it is not set
    reading             how dual encoders read long passages
    """

    passages: int
    queries: dict[str, int]
    labels: int
    shared: float
    passage_tokens: np.ndarray
    query_tokens: np.ndarray
    labelled_tokens: np.ndarray
    drawn: int = 0
    reading: LongPassages = CUT

    @property
    def measured(self) -> int:
        """Number of dev and test queries."""
        return self.queries["dev"] + self.queries["test"]

    def mean_passage(self, length: int) -> float:
        """Mean number of tokens of a passage that is cut to `length`."""
        return float(np.minimum(self.passage_tokens, length).mean())

    def mean_labelled(self, length: int) -> float:
        """The same of a label's passage."""
        return float(np.minimum(self.labelled_tokens, length).mean())

    def mean_pair(self, query: float, length: int, labelled: bool = False) -> float:
        """Mean number of tokens of a query of `query` tokens with a passage, or a label's, both cut to `length`."""
        tokens = self.labelled_tokens if labelled else self.passage_tokens
        return float(np.minimum(query + tokens, length).mean())

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
    query_rows = np.sort(generator.permutation(len(data.queries))[:SAMPLE])
    train = data.split_qrels("train").positive()
    labelled_rows = np.sort(generator.permutation(train.passage)[:SAMPLE])

    def lengths(texts: list[str], most: int = LONGEST) -> np.ndarray:
        return np.sort(Tokens.of(tokenizer, texts, most).lengths)

    passages = lengths(data.passages.take(passage_rows).full_texts(), UNCUT if reading.in_windows else LONGEST)
    queries = lengths(data.query_texts(query_rows)) if len(query_rows) else np.array([UNKNOWN_QUERY])
    labelled = lengths(data.passages.take(labelled_rows).full_texts()) if len(labelled_rows) else passages
    counts = {split: len(labelled_queries(data.judged(split))) for split in ("train", "dev", "test")}
    per_passage = np.bincount(train.passage, minlength=len(data.passages))
    shared = float((per_passage[train.passage] > 1).mean()) if len(train.passage) else 0.0
    trained = len(np.unique(data.trained_labels.query))
    drawn = trained if trained < counts["train"] else 0
    sizes = len(data.passages), counts, len(train.passage), shared
    return DataFacts(*sizes, passages, queries, labelled, drawn, reading)
