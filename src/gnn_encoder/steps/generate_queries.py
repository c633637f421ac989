"""Generates a query for each hard negative, and compares it with the queries that have the negative (SS-BERT 3.2).

Each distinct negative gets one query q_G, which all triples with the negative share. sim(q, q_G) is the cosine of the
sentence embeddings of q and q_G. The report compares the distribution of sim with SS-BERT's Table 5.

A task that shares the work generates its share of the batches of all negatives, because a query depends on the batch in
which it is generated. Every task therefore tokenizes all negatives. A triple belongs to the task of its negative.
"""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, GeneratedQueries, KnownPositives
from gnn_encoder.artifacts.arrays import at_unit_length
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.task_figures import query_figures
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.inference.generation import generate, generation_batches, passage_ids
from gnn_encoder.inference.tokens import SHARD, Tokens
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.models.query_generator import QueryGenerator
from gnn_encoder.report.study import first_words_of
from gnn_encoder.settings.foundation import GenerateQueries
from gnn_encoder.training.denoising import Pairs, hard_negatives, read_candidates


@step(generated_queries="generated_queries")
def generate_queries(
    context: Context,
    settings: GenerateQueries,
    dataset: Path,
    candidates: Path,
    query_generator: Path,
    generated_queries: Draft,
) -> Metrics:
    """Generates a query for every distinct hard negative, and computes its similarities."""
    data = Dataset(dataset)
    scored = read_candidates(candidates, data, settings.negative_depth, settings.seed)
    negatives = hard_negatives(scored, KnownPositives.of(data, "train"), settings.negative_below)
    triples = choose_triples(negatives, settings.negatives_per_query, settings.max_passages, settings.seed)
    passages = np.unique(triples.passage)
    generator = QueryGenerator.load(query_generator)
    shards = (passages[start : start + SHARD] for start in range(0, len(passages), SHARD))
    tokens = Tokens.join([passage_ids(generator, data.passages.take(shard).full_texts()) for shard in shards])
    batches = generation_batches(generator, tokens, settings.beams, settings.tokens_per_batch)
    batches = batches[settings.share(len(batches))]
    rows = np.sort(np.concatenate([*batches, np.empty(0, np.int64)]))
    writing = context.progress("writing queries", len(rows), "queries")
    options = {"batches": batches, "progress": writing, **settings.decoding, **settings.speed}
    every = generate(generator, tokens, rows=passages, **options)
    rate = writing.rate
    passages, texts = passages[rows], [every[row] for row in rows]
    triple_rows = np.flatnonzero(np.isin(triples.passage, passages))
    triples = Pairs(triples.query[triple_rows], triples.passage[triple_rows])
    similarity = similarities(data, triples, passages, texts, settings)
    out = GeneratedQueries(passages, texts, triples.query, triples.passage, similarity)
    out.write(generated_queries, triple_rows if settings.shards > 1 else None)
    context.log.text(first_words_of(data, out), "generated_queries/first_words.md")
    return query_figures(out, rate)


def choose_triples(negatives: Pairs, per_query: int, max_passages: int, seed: int) -> Pairs:
    """Returns the first hard negatives of each query; with `max_passages`, only on that many drawn passages."""
    chosen = negatives.first(per_query)
    passages = np.unique(chosen.passage)
    if not max_passages or len(passages) <= max_passages:
        return chosen
    drawn = np.random.default_rng(seed).permutation(passages)[:max_passages]
    return chosen.where(np.isin(chosen.passage, drawn))


def similarities(
    dataset: Dataset, triples: Pairs, passages: np.ndarray, texts: list[str], settings: GenerateQueries
) -> np.ndarray:
    """Returns the cosine, fp32 [t], of each triple's query and the query generated (`texts`) from its negative."""
    encoder = TextEncoder.from_backbone(settings.sentence_encoder)
    queries, inverse = np.unique(triples.query, return_inverse=True)
    query_vectors = encode_texts(encoder, dataset.query_texts(queries), **settings.speed)
    written = encode_texts(encoder, texts, **settings.speed)
    return cosines(query_vectors, inverse, written, np.searchsorted(passages, triples.passage))


def cosines(left: np.ndarray, left_rows: np.ndarray, right: np.ndarray, right_rows: np.ndarray) -> np.ndarray:
    """Returns the cosine of `left[left_rows]` and `right[right_rows]`, fp32 [t], in parts, without a [t, d] array."""
    left, right = at_unit_length(left), at_unit_length(right)
    out = np.empty(len(left_rows), dtype=np.float32)
    for start in range(0, len(out), 65_536):
        part = slice(start, start + 65_536)
        out[part] = np.einsum("td,td->t", left[left_rows[part]], right[right_rows[part]])
    return np.clip(out, -1.0, 1.0)
