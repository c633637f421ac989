"""A new system needs no change of the package: a scorer and a retriever from outside are ranked, measured and shown."""

import json
from pathlib import Path

import numpy as np
import pytest
from evaluation_inputs import write_inputs

from gnn_encoder.artifacts import Dataset, Evaluation, Run, drafting
from gnn_encoder.models.backbone_files import SCORER
from gnn_encoder.retrieval import scorers
from gnn_encoder.retrieval.scorers import Contribution
from gnn_encoder.settings import outcome as settings
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.steps.evaluate import evaluate
from gnn_encoder.steps.report import report
from gnn_encoder.steps.rerank import rerank


class SharedWords:
    """Counts the words that query and passage share."""

    def score(self, data: Dataset, query: np.ndarray, passage: np.ndarray, **speed: object) -> np.ndarray:
        pairs = zip(data.query_texts(query), passage.tolist(), strict=True)
        return np.array([sum(part.amount for part in self.explain(data, *pair)) for pair in pairs], np.float32)

    def probability(self, scores: np.ndarray) -> np.ndarray:
        return scores / (1 + scores)

    def explain(self, data: Dataset, query: str, passage: int) -> list[Contribution]:
        (text,) = data.passages.take(np.array([passage])).full_texts()
        return [Contribution(word, 1.0) for word in sorted({*query.split()} & {*text.split()})]


def shuffled(path: Path, run: Run) -> Path:
    order = np.lexsort((np.random.default_rng(0).random(len(run.query)), run.query))
    with drafting(path, "run") as draft:
        Run(run.query, run.passage[order], run.rank, -run.rank.astype(np.float32)).write(draft, "Shuffled")
    return path


def test_a_new_scorer_and_a_new_retriever(
    tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = write_inputs(tmp_path, tiny_dataset, tiny_backbone)
    monkeypatch.setitem(scorers.KINDS, "shared_words", lambda folder: SharedWords())
    with drafting(tmp_path / "scorer", "model") as draft:
        (draft / SCORER).write_text(json.dumps({"kind": "shared_words"}))
    data, scorer, first = {"dataset": inputs["dataset"]}, tmp_path / "scorer", inputs["dpr_run"]
    again = settings.Rerank(system="Shared words", depth=3)
    rerank(again, **data, first_run=first, scorer=scorer, run=tmp_path / "words")
    runs = [first, tmp_path / "words", shuffled(tmp_path / "shuffled", Run.read(first))]
    evaluate(
        Evaluate(baseline="DPR", candidate="Shared words", permutations=100, resamples=50),
        **data, runs=runs, evaluation=tmp_path / "evaluation",
    )  # fmt: skip
    report(settings.Report(), **data, evaluation=tmp_path / "evaluation", scorer=scorer, report=tmp_path / "report")

    metrics = Evaluation.read(tmp_path / "evaluation").metrics
    of_test = metrics["results"]["test"]
    assert list(of_test) == ["DPR", "Shared words", "Shuffled"]
    # Every query of the tiny data names what its passage is about, and DPR's run has that passage third.
    assert (
        of_test["Shared words"]["RR@10"]
        > of_test["Shuffled"]["RR@10"]
        > of_test["DPR"]["RR@10"]
        == pytest.approx(1 / 3)
    )
    page = (tmp_path / "report" / "report.html").read_text("utf-8")
    assert "Shared words won most" in page and "what +1.000" not in page.split("DPR, RR@10")[0]
    assert "Score: " in page


def test_a_kind_that_nobody_made_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / SCORER).write_text(json.dumps({"kind": "shared_words"}))
    with pytest.raises(scorers.UserError, match="unknown kind of scorer 'shared_words'"):
        scorers.load_scorer(tmp_path)
