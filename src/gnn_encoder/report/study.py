"""Tables and curves of a study of re-rankers (SS-BERT 4, BERT-DMN 6), from the artifacts of its run."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Group

from gnn_encoder.artifacts import Dataset, Evaluation, GeneratedQueries
from gnn_encoder.artifacts.history import History, Record
from gnn_encoder.evaluation.results import OfEach, corrected, means, of_split, p_values
from gnn_encoder.evaluation.significance import SIGNIFICANT
from gnn_encoder.report.table import Row, results_table

SPEED, DEV = "batches_per_second", "dev/reranked_AP"
"""Curves of the training of a re-ranker: a point after each epoch."""
ROUGE = {"rouge1": ("ROUGE-1", 55.66), "rouge2": ("ROUGE-2", 31.28), "rougeL": ("ROUGE-L", 52.67)}
"""Metric of the query generator's training → its name, and SS-BERT's figure (Table 4)."""
WORDS = {
    "what": (42.2, 43.8), "how": (15.3, 19.5), "where": (4.4, 4.3), "when": (2.0, 3.4), "why": (1.8, 1.1),
    "who": (1.7, 4.9), "which": (1.4, 0.3),
}  # fmt: skip
"""Word → percent of MS MARCO's queries, and of the generated ones (SS-BERT Table 2)."""
OTHERS = (31.2, 22.5)
"""Of both, percent without these words."""
FREQUENT = 5
"""Number of the training queries' most frequent first words that are shown, too."""


def gains(
    evaluation: Evaluation, metrics: Mapping[str, Any], against: Mapping[str, str]
) -> dict[str, dict[str, OfEach]]:
    """Returns the mean gains of systems over others, `gains`, and their p-values, `gain_p_holm`, of each split.

    `against`: system → the other. A row's name is `SYSTEM against OTHER`. Holm's correction is for the number of rows.
    """
    names = metrics["measures"]
    facts: dict[str, dict[str, OfEach]] = {"gains": {}, "gain_p_holm": {}}
    for split in metrics["results"]:

        def values(system: str, split: str = split) -> np.ndarray:
            return np.stack([evaluation.figures(split, system, name) for name in names], axis=1)

        differences = {f"{one} against {other}": values(one) - values(other) for one, other in against.items()}
        nothing = {"": np.zeros((metrics["queries"][split], len(names)))}
        p = p_values(
            nothing | differences, metrics["permutations"], metrics["seed"], names, baseline="", test=metrics["test"]
        )
        facts["gains"][split], facts["gain_p_holm"][split] = means(differences, names), corrected(p)
    return facts


def trainings(history: History) -> dict[str, Record]:
    """Returns {system: record} of the trained re-rankers."""
    step = "train_reranker: "
    return {title.removeprefix(step): record for title, record in history.items() if title.startswith(step)}


def efficiency(history: History) -> dict[str, dict[str, float]]:
    """Returns batches per second of each training: of the `first` epoch, and of all `later` ones (BERT-DMN Table 3).

    `gain`: `later` as a multiple of `first`. `full`: `later` of a lite system as a multiple of that of the full system
    of its kind. A training that was interrupted in its first epoch has no `first`.
    """
    table: dict[str, dict[str, float]] = {}
    trained = {system: record for system, record in trainings(history).items() if record.curves.get(SPEED)}
    for system, record in trained.items():
        first = [rate for epoch, rate in record.curves[SPEED] if epoch == 1]
        later = [rate for epoch, rate in record.curves[SPEED] if epoch > 1]
        table[system] = {"first": first[0]} if first else {}
        if later:  # every epoch has as many batches, so the time of a batch is averaged, not the rate
            table[system] |= {"later": 1 / float(np.mean([1 / rate for rate in later]))}
        if first and later:
            table[system]["gain"] = table[system]["later"] / first[0]
    full = {record.settings["kind"]: system for system, record in trained.items() if not record.settings["lite"]}
    for system, record in trained.items():
        other = table.get(full.get(record.settings["kind"], ""), {})
        if record.settings["lite"] and "later" in table[system].keys() & other.keys():
            table[system]["full"] = table[system]["later"] / other["later"]
    return table


def first_words(texts: pa.Array | pa.ChunkedArray) -> dict[str, float]:
    """Returns {first word: percent of the texts}, most frequent first; a text without a word has an empty one."""
    words = pc.replace_substring_regex(pc.utf8_lower(texts), r"(?s)^[^\pL\pN]*([\pL\pN]*).*$", r"\1")
    counted = sorted((-count["counts"], count["values"]) for count in words.value_counts().to_pylist())
    return {word: -100 * count / len(texts) for count, word in counted}


def words_table(real: dict[str, float], written: dict[str, float]) -> dict[str, list[float | None]]:
    """Returns {word: percent of the real and of the generated queries, here and in SS-BERT} (`first_words`)."""
    shown = dict.fromkeys([*WORDS, *list(real)[:FREQUENT]])
    table: dict[str, list[float | None]] = {
        word: [real.get(word, 0.0), written.get(word, 0.0), *WORDS.get(word, (None, None))] for word in shown
    }
    others = [100 - sum(percents.get(word, 0.0) for word in WORDS) for percents in (real, written)]
    return table | {"none of the paper's words": [*others, *OTHERS]}


def words_markdown(table: Mapping[str, list[float | None]]) -> str:
    """Returns a table of first words (`words_table`) in Markdown."""
    lines = ["| first word | queries | generated | SS-BERT, queries | SS-BERT, generated |", "|---|---|---|---|---|"]
    for word, percents in table.items():
        shown = ("" if percent is None else f"{percent:.1f} %" for percent in percents)
        lines.append(f"| {' | '.join((word, *shown))} |")
    return "\n".join([*lines, ""])


def first_words_of(dataset: Dataset, generated: GeneratedQueries) -> str:
    """Returns the table of first words of generated queries and of the queries that have their triples, in Markdown."""
    queries = dataset.query_texts(np.unique(generated.query))
    real, written = (first_words(pa.array(texts, pa.string())) for texts in (queries, generated.text))
    return words_markdown(words_table(real, written))


def thresholds(history: History, systems: Collection[str]) -> dict[str, dict[str, float]]:
    """Returns {system: t_A, and the training step with the best dev figure} of those systems that exist (SS-BERT 4.3).

    The dev figure is known after each epoch. Systems are in the order of t_A.
    """
    table = {}
    for system, record in trainings(history).items():
        chosen, dev = history.get(f"select_training_set: {system}"), record.curves.get(DEV)
        if system in systems and chosen and dev:
            epoch, _ = max(dev, key=lambda point: point[1])
            steps = record.metrics["steps"] * epoch / record.settings["epochs"]
            table[system] = {"threshold": chosen.settings["augmentation_threshold"], "step": steps}
    return dict(sorted(table.items(), key=lambda entry: entry[1]["threshold"]))


def learned(history: History) -> dict[str, dict[str, float]]:
    """Returns {re-ranker in documents: λ, and the weight of each type of edge, its mean over the layers}."""
    table: dict[str, dict[str, float]] = {}
    for system, record in trainings(history).items():
        weights: dict[str, list[float]] = {}
        for name, value in record.metrics.items():
            if name.startswith("edge_weight/"):
                weights.setdefault(name.rpartition("/")[-1], []).append(value)
        if weights:
            share = {"λ": record.metrics["context_share"]} if "context_share" in record.metrics else {}
            table[system] = share | {kind: float(np.mean(values)) for kind, values in weights.items()}
    return table


def study_table(metrics: dict[str, Any]) -> Group:
    """Returns the table of all systems, and below the splits the systems' gains over each other."""
    gains: dict[str, list[Row]] = {}
    for split, rows in metrics["gains"].items():
        p_values = metrics["gain_p_holm"][split]
        gains[f"{of_split(metrics, split)}, gains"] = [
            (name, {m: f"{values[m]:+.3f}{'*' if p_values[name][m] < SIGNIFICANT else ' '}" for m in values})
            for name, values in rows.items()
        ]
    return results_table(metrics, gains)
