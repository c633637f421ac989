"""Step 7: positive passage → query, so that a negative can be asked what it would answer (SS-BERT 3.2).

The pairs held out for ROUGE have passages that no training pair has. ROUGE is the F-measure in
percent, words stemmed, as Hugging Face's scripts give it, whose framework SS-BERT follows (its
Table 4: 55.66 / 31.28 / 52.67 on MS MARCO).
"""

from pathlib import Path

import numpy as np
import torch

from gnn_encoder.artifacts import Dataset, Draft, Qrels
from gnn_encoder.errors import UserError
from gnn_encoder.inference.generation import generate, passage_ids, query_ids
from gnn_encoder.models.query_generator import QueryGenerator
from gnn_encoder.runs.step import Metrics, step
from gnn_encoder.settings.foundation import TrainQueryGenerator
from gnn_encoder.tracking.context import Context
from gnn_encoder.training.generation import RowBatches, held_out_loss, token_loss
from gnn_encoder.training.loop import fit


@step(query_generator="model")
def train_query_generator(
    context: Context, settings: TrainQueryGenerator, dataset: Path, query_generator: Draft
) -> Metrics:
    """Train the generator and measure it on pairs it never saw."""
    data = Dataset(dataset)
    train, held_out = split_pairs(
        data.split_qrels("train").positive(), settings.held_out, settings.max_pairs, settings.rouge_pairs, settings.seed
    )
    if len(train.query) == 0:
        raise UserError("no labelled train pairs: the query generator has nothing to learn from")
    torch.manual_seed(settings.seed)  # before the model: its new weights are drawn
    model = QueryGenerator.from_pretrained(settings.generator, settings.passage_length, settings.query_length)
    passages, queries = passage_ids(model, positives(data, train)), query_ids(model, questions(data, train))
    seen, wanted = passage_ids(model, positives(data, held_out)), query_ids(model, questions(data, held_out))

    def look(epoch: int) -> dict[str, float]:
        return {"held_out/loss": held_out_loss(model, seen, wanted, settings.precision)} if len(wanted) else {}

    result = fit(
        model,
        RowBatches(len(queries), settings.batch_size, settings.seed),
        lambda rows: token_loss(model, passages, queries, rows),
        settings,
        context,
        after_epoch=look,
    )
    model.save(query_generator.path)
    figures = look(settings.epochs)
    writing = context.progress("writing held-out queries", len(seen), "queries")
    written = generate(model, seen, precision=settings.precision, progress=writing)
    figures |= rouge(questions(data, held_out), written)
    quality = f"ROUGE-L {figures['rougeL']:.1f}" if "rougeL" in figures else f"loss {result.loss:.3f}"
    return {
        "pairs": len(train.query),
        "held_out_pairs": len(held_out.query),
        **result.metrics(),
        **figures,
        "headline": f"{quality}, {result.examples_per_second:.1f} pairs/s",
    }


def split_pairs(pairs: Qrels, held_out: float, max_pairs: int, rouge_pairs: int, seed: int) -> tuple[Qrels, Qrels]:
    """Pairs to train on and pairs held out, by a seeded draw of distinct passages.

    Args:
        pairs: labelled pairs.
        held_out: share of the passages whose pairs are held out.
        max_pairs: keep at most this many training pairs (0: all).
        rouge_pairs: keep at most this many held-out pairs.
        seed: of all draws.
    """
    generator = np.random.default_rng(seed)
    passages = generator.permutation(np.unique(pairs.passage))
    apart = np.isin(pairs.passage, passages[: round(held_out * len(passages))])
    train = generator.permutation(np.flatnonzero(~apart))[: max_pairs or None]
    kept_back = generator.permutation(np.flatnonzero(apart))[:rouge_pairs]
    return _take(pairs, np.sort(train)), _take(pairs, np.sort(kept_back))


def rouge(queries: list[str], written: list[str]) -> dict[str, float]:
    """Mean ROUGE-1, -2 and -L F-measure, in percent, of generated queries; none without queries."""
    from rouge_score.rouge_scorer import RougeScorer

    if not queries:
        return {}
    names = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(names, use_stemmer=True)
    scores = [scorer.score(query, text) for query, text in zip(queries, written, strict=True)]
    return {name: 100.0 * float(np.mean([score[name].fmeasure for score in scores])) for name in names}


def positives(dataset: Dataset, pairs: Qrels) -> list[str]:
    """Each pair's passage, title and text."""
    return dataset.passages.take(pairs.passage).full_texts()


def questions(dataset: Dataset, pairs: Qrels) -> list[str]:
    """Each pair's query."""
    return dataset.query_texts(pairs.query)


def _take(pairs: Qrels, rows: np.ndarray) -> Qrels:
    return Qrels(pairs.query[rows], pairs.passage[rows], pairs.relevance[rows])
