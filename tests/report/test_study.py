"""The tables of a study of re-rankers against plain loops."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gnn_encoder.artifacts import Evaluation, Manifest
from gnn_encoder.artifacts.history import Record
from gnn_encoder.artifacts.report import PER_QUERY
from gnn_encoder.evaluation.significance import holm, paired_randomization
from gnn_encoder.report.study import (
    OTHERS,
    SPEED,
    WORDS,
    efficiency,
    first_words,
    gains,
    study_table,
    thresholds,
    words_markdown,
    words_table,
)

MEASURES = ["AP", "RR"]


@pytest.fixture
def evaluation(tmp_path: Path) -> Evaluation:
    generator, n = np.random.default_rng(0), 40
    values = {"BM25": generator.random((n, 2))}
    values |= {name: np.clip(values["BM25"] + generator.normal(shift, 0.2, (n, 2)), 0, 1)
               for name, shift in {"BERT": 0.0, "BERT-DMN": 0.2, "DMN": 0.01}.items()}  # fmt: skip
    columns = {"split": ["test"] * n * 4, "system": np.repeat(list(values), n)}
    figures = dict(zip(MEASURES, np.concatenate(list(values.values())).T, strict=True))
    pq.write_table(pa.table({**columns, **figures}), tmp_path / PER_QUERY)
    return Evaluation(tmp_path, Manifest("evaluation", 1))


def test_gains_and_their_p_values(evaluation: Evaluation) -> None:
    results = {name: {m: evaluation.figures("test", name, m).mean() for m in MEASURES} for name in ("BERT", "BERT-DMN")}
    metrics = {
        "measures": MEASURES, "results": {"test": results}, "queries": {"test": 40}, "permutations": 999, "seed": 1,
        "test": "randomization",
    }  # fmt: skip
    against = {"BERT-DMN": "BERT", "DMN": "BM25"}
    facts = gains(evaluation, metrics, against)
    names = ["BERT-DMN against BERT", "DMN against BM25"]
    for column, measure in enumerate(MEASURES):
        differences = [
            evaluation.figures("test", a, measure) - evaluation.figures("test", b, measure) for a, b in against.items()
        ]
        p = [paired_randomization(gained[:, None], 999, 1)[0] for gained in differences]
        for name, difference, expected in zip(names, differences, holm(np.array(p)), strict=True):
            assert facts["gains"]["test"][name][measure] == pytest.approx(math.fsum(difference) / 40)
            assert abs(facts["gain_p_holm"]["test"][name][measure] - expected) < 0.05, column
    significant = {name: of["AP"] < 0.05 for name, of in facts["gain_p_holm"]["test"].items()}
    assert significant == dict(zip(names, (True, False), strict=True))
    shown = {"baseline": "BERT", "fusions": {}, "p_holm": {"test": {}}}
    (table,) = study_table({**metrics, **facts, **shown}).renderables
    assert table.row_count == 6


def training(rates: list[float], kind: str = "bert_dmn", lite: bool = False, **metrics: float) -> Record:
    curves = {SPEED: list(enumerate(rates, 1))}
    return Record({"kind": kind, "lite": lite}, metrics=metrics, curves=curves)


def test_efficiency_is_a_later_epochs_batches_by_its_time() -> None:
    history = {
        "ingest": Record(),
        "train_reranker: BERT-DMN": training([2.0, 4.0, 1.0]),
        "train_reranker: BERT-DMN lite": training([3.0, 8.0, 8.0], lite=True),
        "train_reranker: BERT lite": training([1.0, 2.0], "cross_encoder", lite=True),
        "train_reranker: DMN": training([5.0], "dmn"),
        "train_reranker: QA-LSTM": Record({"kind": "qa_lstm", "lite": False}),
        "train_reranker: K-NRM": Record({"kind": "k_nrm", "lite": False}, curves={SPEED: [(2, 50.0), (3, 50.0)]}),
    }
    table = efficiency(history)
    batches = 120  # in each epoch
    later = 2 * batches / (batches / 4 + batches / 1)
    assert table == {
        "BERT-DMN": {"first": 2.0, "later": pytest.approx(later), "gain": pytest.approx(later / 2)},
        "BERT-DMN lite": {"first": 3.0, "later": 8.0, "gain": pytest.approx(8 / 3), "full": pytest.approx(8 / later)},
        "BERT lite": {"first": 1.0, "later": 2.0, "gain": 2.0},
        "DMN": {"first": 5.0},
        "K-NRM": {"later": 50.0},  # it was interrupted in its first epoch
    }
    assert table["BERT-DMN"]["later"] != pytest.approx(2.5)  # control: the mean of the rates


def test_first_words() -> None:
    texts = ["What is it", "  what's new", "¿Qué es?", "how", "", "42 is\nwhat", "¡!", "what\n2"]
    percents = first_words(pa.chunked_array([texts[:3], texts[3:]]))
    counted = Counter(["what", "what", "qué", "how", "", "42", "", "what"])
    assert percents == {word: 100 * count / len(texts) for word, count in counted.items()}
    assert list(percents)[:2] == ["what", ""]
    table = words_table(percents, {"how": 25.0, "the": 75.0})
    assert table["what"] == [37.5, 0.0, 42.2, 43.8] and table["42"] == [12.5, 0.0, None, None] and "the" not in table
    *_, (name, rest) = table.items()
    assert name not in WORDS and rest == [50.0, 75.0, *OTHERS]
    assert abs(sum(paper for paper, _ in WORDS.values()) + OTHERS[0] - 100) < 1e-9
    lines = words_markdown(table).splitlines()
    assert len(lines) == 2 + len(table) and {line.count("|") for line in lines} == {6}
    assert "| what | 37.5 % | 0.0 % | 42.2 % | 43.8 % |" in lines and "| 42 | 12.5 % | 0.0 % |  |  |" in lines
    assert first_words(pa.array([], pa.string())) == {}


def test_thresholds_are_in_order_and_have_the_step_of_the_first_best_figure() -> None:
    history = {}
    for name, threshold, dev in [("h, t_A = 0.3", 0.3, [0.1, 0.4, 0.4]), ("h", 0.1, [0.5, 0.4, 0.2]), ("t", 0.1, [1])]:
        history[f"select_training_set: {name}"] = Record({"augmentation_threshold": threshold})
        history[f"train_reranker: {name}"] = Record(
            {"epochs": 3}, metrics={"steps": 300}, curves={"dev/reranked_AP": list(enumerate(dev, 1))}
        )
    table = thresholds(history, ["h", "h, t_A = 0.3"])
    assert table == {"h": {"threshold": 0.1, "step": 100}, "h, t_A = 0.3": {"threshold": 0.3, "step": 200}}
    assert list(table) == ["h", "h, t_A = 0.3"]
