"""Measures of odd data are those of pytrec_eval on the TREC files that are written, and the files are read back."""

import gzip
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from odd_data.data_sets import COLLIDING_IDS, ROLLS, data_sets
from odd_data.plain import Ingested, ingested
from odd_data.stored import rankings, write_dataset

from gnn_encoder.artifacts import Dataset, Evaluation, Qrels, Run, drafting
from gnn_encoder.evaluation.collected import Collected
from gnn_encoder.evaluation.compare import STATISTICS, compare
from gnn_encoder.evaluation.trec import read_run_of

PEERS = {
    "nDCG@10": "ndcg_cut.10", "AP": "map", "R@5": "recall.5", "P@3": "P.3", "Success@1": "success.1", "Rprec": "Rprec",
}  # fmt: skip
MEASURES = ("RR@10", *PEERS)


def fields(path: Path) -> list[list[str]]:
    """The fields of a gzip file's lines, which plain spaces separate."""
    return [line.split(" ") for line in gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]]


def trec_eval(qrels: Path, run: Path) -> dict[str, dict[str, float]]:
    """Query → measure → value by pytrec_eval, of the queries with a relevant passage."""
    labels: dict[str, dict[str, int]] = defaultdict(dict)
    for query, _, passage, relevance in fields(qrels):
        labels[query][passage] = int(relevance)
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for query, _, passage, _, score, _ in fields(run):
        scores[query][passage] = float(score)
    # recip_rank has no depth, so the first ten are cut in trec_eval's order: by score, then by id, descending.
    ten = {q: dict(sorted(hits.items(), key=lambda hit: (hit[1], hit[0].encode()))[-10:]) for q, hits in scores.items()}
    measured = pytrec_eval.RelevanceEvaluator(labels, set(PEERS.values())).evaluate(scores)
    reciprocal = pytrec_eval.RelevanceEvaluator(labels, {"recip_rank"}).evaluate(ten)
    values = {}
    for query, judged in labels.items():
        if max(judged.values()) >= 1:
            of_query = {name: measured.get(query, {}).get(peer.replace(".", "_"), 0.0) for name, peer in PEERS.items()}
            values[query] = of_query | {"RR@10": reciprocal.get(query, {}).get("recip_rank", 0.0)}
    return values


@st.composite
def ranked_data(draw: st.DrawFn) -> tuple[Ingested, list[Run]]:
    """Data with a labelled dev or test query, and two rankings; many ids are alike."""
    rows = draw(data_sets(most=20, ids=COLLIDING_IDS, one_in=1))
    dice, labels = draw(ROLLS), rows.labels[draw(st.sampled_from(tuple(rows.labels)))]
    for label in labels[: dice.below(4)]:  # of passages that the corpus lacks, or of others
        labels.append(label._replace(passage=dice.one_of(COLLIDING_IDS)))
    data = ingested(rows)
    assume(any(data.split[query] != "train" for query in data.answered()))
    return data, [draw(rankings(data)) for _ in range(2)]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(ranked_data())
def test_measures_are_those_of_the_written_files(case: tuple[Ingested, list[Run]]) -> None:
    plain, runs = case
    names = ["first", "second system"]
    with tempfile.TemporaryDirectory() as root:
        data = write_dataset(Path(root) / "dataset", plain)
        with drafting(Path(root) / "evaluation", "evaluation") as draft:
            collected = Collected(data, MEASURES, draft, 1000)
            for name, run in zip(names, runs, strict=True):
                collected.add(name, run.of(collected.evaluated))
            collected.finish()
            files = {name: Evaluation.trec_file(draft, name, "trec") for name in names}
            figures = collected.figures(MEASURES)
            for split, rows in collected.queries.items():
                qrels = Evaluation.trec_file(draft, split, "qrels")
                ids = written_ids(qrels, data.judged(split))
                for name in names:
                    theirs = trec_eval(qrels, files[name])
                    assert theirs.keys() == {ids[row] for row in rows.tolist()}
                    expected = [[theirs[ids[row]][measure] for measure in MEASURES] for row in rows.tolist()]
                    np.testing.assert_allclose(figures[split][name], expected, rtol=0, atol=1e-9)
                # A file with hits of none of these queries is refused, and a file without any hit is a row of zeros.
                shown = [
                    n for n, run in zip(names, runs, strict=True) if len(run.of(rows).query) or not fields(files[n])
                ]
                if not shown:
                    continue
                with pytest.MonkeyPatch.context() as patch:
                    patch.setitem(STATISTICS, "permutations", 10)
                    patch.setitem(STATISTICS, "resamples", 10)
                    compared = compare([files[name] for name in shown], qrels, MEASURES)
                for name, of_system in zip(shown, compared["results"].values(), strict=True):
                    means = figures[split][name].mean(axis=0)
                    np.testing.assert_allclose(list(of_system.values()), means, rtol=0, atol=1e-9)
            for name, run in zip(names, runs, strict=True):
                assert_read_back(files[name], data, run.of(collected.evaluated))


def written_ids(qrels: Path, labels: Qrels) -> dict[int, str]:
    """Query row → id in a written file. Different ids are written differently."""
    lines = fields(qrels)
    for column, rows in ((0, labels.query), (2, labels.passage)):
        names = {(row, line[column]) for row, line in zip(rows.tolist(), lines, strict=True)}
        assert len(names) == len({name for _, name in names}) == len({row for row, _ in names})
    return {row: line[0] for row, line in zip(labels.query.tolist(), lines, strict=True)}


def assert_read_back(path: Path, data: Dataset, run: Run) -> None:
    """A written run is read back with all of its hits."""
    if not len(run.query):
        return
    read_back = read_run_of(path, data)
    assert sorted(
        zip(*(getattr(read_back, name).tolist() for name in ("query", "passage", "score")), strict=True)
    ) == sorted(zip(*(getattr(run, name).tolist() for name in ("query", "passage", "score")), strict=True))
