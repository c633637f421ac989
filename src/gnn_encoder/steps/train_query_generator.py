"""Trains a query generator; a generated query shows which query a negative passage answers (SS-BERT 3.2).

No training pair has a passage or a query of the pairs held out for ROUGE, or a twin of such a query. Where few passages
answer many queries, fewer pairs are held out, or none, so that half of all pairs or more are trained on. ROUGE is the
F-measure in percent of stemmed words, as in the Hugging Face scripts that SS-BERT uses (SS-BERT Table 4: 55.66 /
31.28 / 52.67 on MS MARCO).
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Dataset, Draft, Qrels
from gnn_encoder.artifacts.words import words
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import attention_of_any_shape, autocast
from gnn_encoder.inference.generation import generate, pair_batch, passage_ids, query_ids
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.query_generator import QueryGenerator
from gnn_encoder.settings.foundation import TrainQueryGenerator
from gnn_encoder.training.batches import ShuffledBatches
from gnn_encoder.training.embed import passes
from gnn_encoder.training.loop import Objective, fit
from gnn_encoder.training.ranks import alone, own_share, world_size


@step(query_generator="model")
def train_query_generator(
    context: Context, settings: TrainQueryGenerator, dataset: Path, query_generator: Draft
) -> Metrics:
    """Trains the generator and measures it on held-out pairs."""
    data = Dataset(dataset)
    train, held_out = split_pairs(
        data.trained_labels, settings.held_out, settings.max_pairs, settings.rouge_pairs,
        settings.seed, data.groups, data.passage_groups,
    )  # fmt: skip
    if len(train.query) == 0 and settings.trained:
        raise UserError("no labelled training pairs, so the query generator cannot be trained")
    torch.manual_seed(settings.seed)  # before the model, because its new weights are random
    model = QueryGenerator.from_pretrained(
        settings.generator, settings.passage_length, settings.query_length, settings.separator, settings.instruction
    )
    questions = data.query_texts(held_out.query)
    passages = passage_ids(model, data.passages.take(train.passage).full_texts())
    queries = query_ids(model, data.query_texts(train.query))
    seen = passage_ids(model, data.passages.take(held_out.passage).full_texts())
    wanted = query_ids(model, questions)

    def parts(rows: np.ndarray) -> list[tuple[np.ndarray, float]]:
        return token_parts(model, passages, queries, rows, settings.tokens_per_pass, shared=True)

    def loss(part: tuple[np.ndarray, float]) -> Tensor:
        return token_loss(model, passages, queries, *part)

    def measure() -> dict[str, float]:
        every = token_parts(model, seen, wanted, np.arange(len(wanted)), settings.tokens_per_pass)
        with torch.inference_mode(), attention_of_any_shape(), autocast(settings.precision):
            total = sum(token_loss(model, seen, wanted, *part).item() for part in every)
        return {"held_out/loss": total} if every else {}

    result: dict[str, Any] = {}
    if settings.trained:
        plan = ShuffledBatches(len(queries), settings.batch_size, settings.seed)
        result = fit(Objective(model, plan, loss, parts=parts, measure=measure), settings, context)
    model.save(query_generator.path)
    writing = context.progress("writing held-out queries", len(seen), "queries")
    with alone():
        figures = measure()
        written = generate(model, seen, precision=settings.precision, progress=writing)
    figures |= rouge(questions, written)
    quality = f"loss {result['final_loss']:.3f}" if result else "as published"
    speed = f", {result['examples_per_second']:.1f} pairs/s" if result else ""
    quality = f"ROUGE-L {figures['rougeL']:.1f}" if questions else f"{quality}, ROUGE not measured: no pair is held out"
    return {
        "pairs": len(train.query),
        "held_out_pairs": len(held_out.query),
        **result,
        **figures,
        "headline": f"{quality}{speed}",
    }


def token_parts(
    model: QueryGenerator,
    passages: Tokens,
    queries: Tokens,
    rows: np.ndarray,
    tokens_per_pass: int,
    shared: bool = False,
) -> list[tuple[np.ndarray, float]]:
    """Returns some pairs in length-sorted parts, each with the number of query tokens of all of these pairs.

    `shared`: the parts are of this process's share (`ranks`), with the number of tokens that each process has in the
    mean, so that the mean of the processes' losses is the loss of all pairs.
    """
    tokens = float(queries.lengths[rows].sum())
    if shared:
        rows, tokens = own_share(rows), tokens / world_size()
    lengths = passages.lengths[rows] + model.added + queries.lengths[rows]
    return [(rows[part], tokens) for part in passes(lengths, tokens_per_pass)]


def token_loss(model: QueryGenerator, passages: Tokens, queries: Tokens, rows: np.ndarray, tokens: float) -> Tensor:
    """Returns the cross-entropy (nats) of the queries of some pairs, divided by `tokens`: a part of a batch's mean."""
    losses: Tensor = model(*pair_batch(model, passages, queries, rows))  # [b]
    return losses.sum() / tokens


def split_pairs(
    pairs: Qrels,
    held_out: float,
    max_pairs: int,
    rouge_pairs: int,
    seed: int,
    groups: np.ndarray,
    passage_groups: np.ndarray | None = None,
) -> tuple[Qrels, Qrels]:
    """Splits labelled pairs into training pairs and held-out pairs, by a seeded draw of queries.

    Queries are held out with their twins and all their pairs, until there are `rouge_pairs`; other pairs of their
    passages, and of copies of these, are dropped. A query is passed over if, with it, more than half of all pairs were
    held out or dropped.

    Args:
        pairs: labelled pairs.
        held_out: largest share of the queries that is held out.
        max_pairs: largest number of training pairs (0: all).
        rouge_pairs: largest number of held-out pairs.
        seed: seed of all draws.
        groups, passage_groups: the group of each query and of each passage (as of `Dataset`).
    """
    generator = np.random.default_rng(seed)
    passage = pairs.passage if passage_groups is None else passage_groups[pairs.passage]
    queries, group, counts = np.unique(groups[pairs.query], return_inverse=True, return_counts=True)
    drawn = generator.permutation(len(queries))[: round(held_out * len(queries))]
    rows, starts = np.argsort(group, kind="stable"), np.concatenate([[0], counts.cumsum()])
    pairs_of_passage = np.bincount(passage)
    chosen, taken = np.zeros(len(queries), bool), np.zeros(len(pairs_of_passage), bool)
    kept_back, lost = 0, 0
    for number in drawn.tolist():
        if kept_back >= rouge_pairs:
            break
        passages = np.unique(passage[rows[starts[number] : starts[number + 1]]])
        added = int(pairs_of_passage[passages[~taken[passages]]].sum())
        if 2 * (lost + added) <= len(pairs.query):
            chosen[number], taken[passages] = True, True
            kept_back, lost = kept_back + int(counts[number]), lost + added
    apart = chosen[group]
    trained = ~apart & ~taken[passage]
    train = generator.permutation(np.flatnonzero(trained))[: max_pairs or None]
    measured = generator.permutation(np.flatnonzero(apart))[:rouge_pairs]
    return pairs.where(np.sort(train)), pairs.where(np.sort(measured))


class _Words:
    """A tokenizer of rouge_score for texts of any script."""

    @staticmethod
    def tokenize(text: str) -> list[str]:
        return words(text, shortest=1, runs=iter)


def rouge(queries: list[str], written: list[str]) -> dict[str, float]:
    """Returns mean ROUGE-1, -2 and -L F-measures of generated queries, in percent; {} without queries.

    rouge_score's own tokenizer drops all letters but English ones. So where more than a tenth of the queries' letters
    are others, words are those of `artifacts.words`, without stemming, and each character of an unspaced script is one.
    """
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    if not queries:
        return {}
    letters = [letter for query in queries for letter in query if letter.isalpha()]
    is_english = 10 * sum(not letter.isascii() for letter in letters) <= len(letters)
    names = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(names, tokenizer=DefaultTokenizer(use_stemmer=True) if is_english else _Words())
    scores = [scorer.score(query, text) for query, text in zip(queries, written, strict=True)]
    return {name: 100.0 * float(np.mean([score[name].fmeasure for score in scores])) for name in names}
