"""The re-ranking pipeline on a tiny data set with tiny random models, as `gnn-encoder rerank` runs it."""

import json
import sys
from pathlib import Path

import pytest
from trained_root import Trained

from gnn_encoder.artifacts import Report
from gnn_encoder.cli import app

pytestmark = pytest.mark.timeout(300)


def rerank(trained: Trained, *more: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gnn-encoder", "rerank", *trained.command[1:], *more])
        with pytest.raises(SystemExit) as caught:
            app.main()
    return int(caught.value.code or 0)


def test_every_kind_is_trained_ranked_and_compared(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert rerank(trained) == 0
    shown = capsys.readouterr().out
    for title in ("train_reranker: BERT-DMN", "rerank: ColBERT", "evaluate", "report"):
        assert title in shown
    page = Path(shown.split("report ")[-1].strip())
    metrics = Report.read(page.parent).metrics
    assert list(metrics["results"]["test"]) == ["BM25", "BERT", "BERT-DMN", "ColBERT"]
    assert (metrics["baseline"], metrics["candidate"]) == ("BM25", "ColBERT")
    assert len({json.dumps(figures) for figures in metrics["results"]["test"].values()}) == 4
    assert "BERT-DMN" in page.read_text()
    (parent,) = (run for run in trained.runs() if run.info.run_name.startswith("rerank-tiny"))
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["test/ColBERT/RR_at_10"] == metrics["results"]["test"]["ColBERT"]["RR@10"]

    # The same again is cached; another system alone is trained, and the order is the user's.
    assert rerank(trained, "--systems", "colbert,bert_dmn", "--set", "train_reranker.episodes=2") == 0
    shown = capsys.readouterr().out
    assert shown.count("  cached  ") == 4  # ingest, BM25, and ColBERT, which has no episodes
    again = Report.read(Path(shown.split("report ")[-1].strip()).parent).metrics
    assert list(again["results"]["test"]) == ["BM25", "ColBERT", "BERT-DMN"] and again["candidate"] == "BERT-DMN"


@pytest.mark.parametrize(
    ("systems", "words"), [("bm25", "no system 'bm25': choose of cross_encoder"), ("", "no system is named")]
)
def test_an_unknown_system_is_one_line(
    systems: str, words: str, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rerank(trained, "--systems", systems) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1
