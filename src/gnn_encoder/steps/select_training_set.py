"""Selects the training examples of M_de and of the GNN; each example has an origin:

labelled    (q, p, N): every labelled positive p of a training query q
denoised    (q, p, N): every unlabelled candidate p with a high M_ce score
selected    (q, p, N_H): a labelled or denoised example, only with negatives n whose generated query is similar to q,
            sim(q, q_G(n)) ≥ t_G. SS-BERT mixes the triples T(q, p, n_H) with the originals T(q, p, n) in a 1:1 ratio.
            Here all originals stay, and as many selected examples are added (`selection_mix: equal`), each equally
            often; a seeded draw chooses the remainder
generated   (q_G(n), n, {p}): a triple (q, p, n) with sim(q, q_G(n)) < t_A, reversed

N are the query's hard negatives, highest score first, without positives of the query's twins. N may have few or no
negatives; the metrics count such examples.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, GeneratedQueries, KnownPositives, TrainingSet, pair_keys
from gnn_encoder.artifacts.texts import folded, is_blank
from gnn_encoder.artifacts.training_examples import ORIGINS
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import SelectTrainingSet
from gnn_encoder.training.denoising import (
    Pairs,
    denoised_positives,
    hard_negatives,
    labelled_positives,
    read_candidates,
)

LABELLED, DENOISED, SELECTED, GENERATED = range(len(ORIGINS))


@step(training_set="training_set")
def select_training_set(
    context: Context,
    settings: SelectTrainingSet,
    dataset: Path,
    candidates: Path,
    generated_queries: Path,
    training_set: Draft,
) -> Metrics:
    """Denoises candidates, selects triples, adds generated examples, and writes all examples."""
    data = Dataset(dataset)
    pairs = read_candidates(candidates, data, settings.negative_depth, settings.seed)
    labelled, judged = labelled_positives(data.trained_labels), data.split_qrels("train")
    denoised = denoised_positives(pairs, judged, settings.positive_above, data.groups, data.passage_groups)
    known = KnownPositives.of(data, "train", denoised.query, denoised.passage)
    negatives = hard_negatives(pairs, known, settings.negative_below)
    if len(labelled) + len(denoised) == 0:
        raise UserError("no training query has a positive: check the train qrels of the dataset")
    width = settings.negatives_per_example
    triples = GeneratedQueries.read(generated_queries)
    parts = [original_examples(data, labelled, negatives, LABELLED, width)]
    parts.append(original_examples(data, denoised, negatives, DENOISED, width))
    if settings.selection:
        resembling = triples.similarity >= settings.selection_threshold
        wanted = pair_keys(triples.query[resembling], triples.negative[resembling])
        alike = negatives.where(np.isin(pair_keys(negatives.query, negatives.passage), wanted))
        parts.append(selected_examples(concatenate(parts), alike, width, settings))
    if settings.augmentation:
        parts.append(generated_examples(data, labelled, negatives, triples, settings.augmentation_threshold, width))
    examples = concatenate(parts)
    examples.write(training_set)
    originals = examples.origin <= DENOISED
    counts = {
        "examples": len(examples.query),
        **dict(zip(ORIGINS, np.bincount(examples.origin, minlength=len(ORIGINS)).tolist(), strict=True)),
        "without_negatives": int((examples.negatives < 0).all(axis=1).sum()),
        "queries": len(np.unique(examples.query[originals])),
        "candidates": len(pairs.query),
        "hard_negatives": len(negatives),
    }
    context.log.text(counts_table(counts), "training_set/training_set.md")
    return {**counts, "headline": ", ".join(f"{counts[name]:,} {name}" for name in ORIGINS if counts[name])}


def original_examples(dataset: Dataset, positives: Pairs, negatives: Pairs, origin: int, width: int) -> TrainingSet:
    """Returns one example per positive, with the query's first `width` hard negatives."""
    return TrainingSet(
        dataset.query_texts(positives.query),
        positives.query.astype(np.int32),
        positives.passage.astype(np.int32),
        negatives.table(positives.query, width),
        np.full(len(positives), origin, dtype=np.int8),
    )


def selected_examples(originals: TrainingSet, alike: Pairs, width: int, settings: SelectTrainingSet) -> TrainingSet:
    """Returns copies of `originals` with only the query's `alike` negatives; queries without any are left out.

    `selection_mix: equal` returns as many copies as there are originals, repeated as evenly as possible.
    """
    table = alike.table(originals.query, width)
    usable = np.flatnonzero((table >= 0).any(axis=1))
    if len(usable) == 0:
        return originals.take(usable)
    wanted = len(originals.query) if settings.selection_mix == "equal" else len(usable)
    rounds, rest = divmod(wanted, len(usable))
    drawn = np.random.default_rng(settings.seed).permutation(usable)[:rest]
    rows = np.sort(np.concatenate([np.tile(usable, rounds), drawn]))
    origin = np.full(len(rows), SELECTED, dtype=np.int8)
    return replace(originals.take(rows), negatives=table[rows], origin=origin)


def generated_examples(
    dataset: Dataset, labelled: Pairs, negatives: Pairs, triples: GeneratedQueries, threshold: float, width: int
) -> TrainingSet:
    """Returns one example per triple (q, n) with sim(q, q_G(n)) < `threshold`: for q_G(n), n is a positive.

    Left out are empty generated queries, those with the text of a dev or test query, which must not train, and queries
    without a labelled positive.
    """
    keys = pair_keys(negatives.query, negatives.passage)
    unlike = (triples.similarity < threshold) & np.isin(pair_keys(triples.query, triples.negative), keys)
    unlike &= np.isin(triples.query, labelled.query)
    position = np.searchsorted(triples.passage, triples.negative)
    measured = dataset.query_texts(np.concatenate([dataset.query_rows("dev"), dataset.query_rows("test")]))
    forms = {folded(text) for text in measured}
    usable = [not is_blank(text) and folded(text) not in forms for text in triples.text]
    texts = np.array(triples.text, dtype=object)
    rows = np.flatnonzero(unlike & np.array(usable, dtype=bool)[position])
    return TrainingSet(
        texts[position[rows]].tolist(),
        np.full(len(rows), -1, dtype=np.int32),
        triples.negative[rows],
        labelled.table(triples.query[rows], width),
        np.full(len(rows), GENERATED, dtype=np.int8),
    )


def concatenate(parts: list[TrainingSet]) -> TrainingSet:
    """Returns all examples of several sets, in order."""
    names = ("query", "positive", "negatives", "origin")
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return TrainingSet([text for part in parts for text in part.query_text], *columns)


def counts_table(counts: dict[str, int]) -> str:
    """Returns the counts as a Markdown table."""
    lines = ["| of the training set | count |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name.replace('_', ' ')} | {value:,} |" for name, value in counts.items()), ""])
