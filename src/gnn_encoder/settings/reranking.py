"""Settings of the steps that train re-rankers."""

from typing import Literal

from gnn_encoder.settings.shared import MeasuredTraining
from gnn_encoder.settings.values import Count, Fraction, PositiveFloat, PositiveInt

RerankerKind = Literal["cross_encoder", "bert_dmn", "colbert"]


class TrainReranker(MeasuredTraining):
    """A re-ranker, trained on positives and negatives of the first stage. All kinds have the same training pairs."""

    kind: RerankerKind = "cross_encoder"
    """`cross_encoder`: a linear layer over [CLS] (BERT). `bert_dmn`: a memory network over the token outputs.
    `colbert`: late interaction."""
    backbone: str = "bert-base-uncased"
    learning_rate: PositiveFloat = 3e-5
    """Of the backbone (BERT-DMN 5.2)."""
    head_learning_rate: PositiveFloat = 3e-5
    """Of the weights that start at random. BERT-DMN has one rate for all weights."""
    batch_size: PositiveInt = 32
    """Pairs in a batch, positives and negatives together."""
    negatives: PositiveInt = 1
    """Negatives per positive, drawn again in each epoch."""
    negative_depth: PositiveInt = 100
    """They are drawn from this many first hits of the first stage."""
    loss: Literal["pointwise", "pairwise_margin", "pairwise_softmax"] = "pairwise_margin"
    """As in `train_cross_encoder`. BERT-DMN: `pairwise_margin`; ColBERT: `pairwise_softmax`."""
    margin: PositiveFloat = 0.2
    """Of `pairwise_margin`. The scores of `cross_encoder` and `bert_dmn` are then probabilities (BERT-DMN 3.2)."""
    keep: Literal["last", "best"] = "best"
    """As in `train_cross_encoder`, by MAP (BERT-DMN 5.2)."""
    pair_length: PositiveInt = 512
    """cross_encoder, bert_dmn: tokens of `[CLS] query [SEP] passage [SEP]`."""
    memory_width: PositiveInt = 256
    """bert_dmn: d, the width of all states."""
    episodes: PositiveInt = 4
    memory_dropout: Fraction = 0.1
    """bert_dmn: at the memory network's input, on the gates and before the output."""
    shared_episodes: bool = True
    bidirectional: bool = False
    """bert_dmn: the sentences' GRU reads in both directions. The paper does not say."""
    memory_includes_question: bool = False
    """bert_dmn: the last GRU reads the question before the memories."""
    token_width: PositiveInt = 128
    """colbert: length of a token's vector."""
    query_length: PositiveInt = 32
    passage_length: PositiveInt = 180
    """colbert: tokens of a query and of a passage."""
    expand_queries: bool = True
    """colbert: queries are filled up with [MASK]."""
    dev_queries: Count = 200
    """As in `train_cross_encoder`."""
