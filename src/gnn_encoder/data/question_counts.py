"""The figures of a data report about queries and labels."""

from typing import Any

import numpy as np

from gnn_encoder.artifacts import pair_keys
from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.data.cutting import words_in
from gnn_encoder.data.questions import Questions
from gnn_encoder.data.splits import TRAIN

SLICE = 16_384
"""Queries that are Python strings at a time: a log may have millions."""


def question_counts(questions: Questions, passages: int) -> dict[str, Any]:
    """The fields of a `DataReport` about queries and labels, given a corpus of `passages`."""
    rows = {"queries": questions.split, "labels": questions.split[questions.query[questions.in_corpus()]]}
    rows["without_positive"] = questions.split[~questions.answered()]
    rows["findable"] = questions.split[questions.answered(findable=True)]
    positive = questions.positive() & questions.in_corpus()
    passage, split = questions.passage[positive], questions.split[questions.query[positive]]
    # Training queries of each passage. Twins count once, because they leave the graph together.
    asking = np.unique(pair_keys(questions.groups[questions.query[positive]], passage)[split == TRAIN])
    trained = np.bincount(asking & 0xFFFFFFFF, minlength=passages)
    shared = trained[passage] > (split == TRAIN)
    labelled, warm = np.unique(questions.query[positive]), np.unique(questions.query[positive][shared])
    texts = questions.queries["text"]
    starts = range(0, len(texts), SLICE)
    words = sum(words_in(text) for start in starts for text in texts.slice(start, SLICE).to_pylist())
    return {
        **{
            name: {split: int((codes == code).sum()) for code, split in enumerate(SPLITS)}
            for name, codes in rows.items()
        },
        "shared_labels": _shares(shared, split),
        "warm_queries": _shares(np.isin(labelled, warm), questions.split[labelled]),
        "twins": int((np.bincount(questions.groups, minlength=1)[questions.groups] > 1).sum()),
        "recurring": {
            name: dict(zip(SPLITS, questions.recurring[questions.split == code].sum(axis=0).tolist(), strict=True))
            for code, name in enumerate(SPLITS)
        },
        "train_before_draw": questions.train_before_draw,
        "trained": int(questions.trained.sum()),
        "dev_before_draw": questions.dev_before_draw,
        "isolated_passages": passages - len(np.unique(passage)),
        "query_words": words / max(len(texts), 1),
    }


def _shares(mask: np.ndarray, split: np.ndarray) -> dict[str, float]:
    """The share of true values of a mask [n] in each split that has any, given the split int8 [n] of each value."""
    return {name: float(mask[split == code].mean()) for code, name in enumerate(SPLITS) if (split == code).any()}
