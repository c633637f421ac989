"""The ladder called with texts and labels in memory, against the command line on the same folder."""

import ast
import csv
import html
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from beir_folder import check
from command_line import call
from documentation import PROJECT
from trained_root import write_beir

from gnn_encoder import Comparison, Result, Retriever, UserError, compare, evaluate, run
from gnn_encoder.artifacts import Dataset, Report, drafting
from gnn_encoder.artifacts.finished_run import place_of
from gnn_encoder.evaluation.measures import NAMES, mean_name
from gnn_encoder.evaluation.results import block, detectable_differences
from gnn_encoder.notebook import calls
from gnn_encoder.notebook.texts import write_texts
from gnn_encoder.report.page import report_charts
from gnn_encoder.settings.foundation import Ingest

NOTEBOOK = PROJECT / "docs" / "guides" / "python.ipynb"
CORPUS = {f"p{i}": f"passage {i} is about number {i}" for i in range(30)}
QUERIES = {f"q{i}": f"what is number {i}" for i in range(30)}
LABELS = {f"q{i}": {f"p{i}": 1} for i in range(30)}


def test_each_form_of_texts_and_labels_is_the_same_folder(tmp_path: Path) -> None:
    texts, queries = [*CORPUS.values()], [*QUERIES.values()]
    numbers = {i: {i: 1} for i in range(30)}
    plain = write_texts(tmp_path, dict(enumerate(texts)), dict(enumerate(queries)), {"train": numbers, "test": None})
    forms: list[tuple[Any, Any, Any]] = [
        (texts, queries, {str(i): [str(i)] for i in range(30)}),
        (pd.Series(texts), pd.Series(queries), dict(enumerate(range(30)))),
        (np.array(texts), np.array(queries), {i: pd.Series({i: 1}).to_dict() for i in range(30)}),
        (texts, queries, dict(enumerate(np.arange(30)))),
        (texts, queries, {i: np.array([i]) for i in range(30)}),
    ]
    for corpus, query_texts, labels in forms:
        assert write_texts(tmp_path, corpus, query_texts, {"train": labels}) == plain
    other = write_texts(tmp_path, texts, queries, {"train": {**numbers, 0: {1: 1}}})
    assert other != plain, "a control"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([plain.name, other.name])


def test_the_folder_has_the_texts_and_labels(tmp_path: Path) -> None:
    odd = {"a": {"_id": "its row's", "title": "T", "text": 'x "y"\n\tz'}, "b\t": "é\u2028", **CORPUS}
    labels = {"q0": {"a": 2, "b\t": 1}, **{key: of for key, of in LABELS.items() if key != "q0"}}
    folder = write_texts(tmp_path, odd, QUERIES, {"train": labels, "test": None})
    records = [json.loads(line) for line in (folder / "corpus.jsonl").read_text("utf-8").split("\n")[:-1]]
    assert records[:2] == [{**odd["a"], "_id": "a"}, {"_id": "b\t", "text": "é\u2028"}]  # type: ignore[dict-item]
    rows = [*csv.reader(io.StringIO((folder / "qrels/train.tsv").read_text("utf-8")), delimiter="\t")]
    assert rows[:3] == [["query-id", "corpus-id", "score"], ["q0", "a", "2"], ["q0", "b\t", "1"]]
    report = check(Ingest(dataset=str(folder)))
    assert not report.problems and report.passages == 32 and sum(report.labels.values()) == 31


@pytest.mark.parametrize(
    ("corpus", "queries", "by_chance"),
    [
        (CORPUS, QUERIES, False),
        (pd.Series(CORPUS), pd.Series(QUERIES), False),
        (CORPUS, None, False),
        ({7: "a", 9: "b"}, {9: "c"}, False),
        ([*CORPUS.values()], QUERIES, True),
        (CORPUS, [*QUERIES.values()], True),
        (pd.Series([*CORPUS.values()]), pd.Series([*QUERIES.values()]), True),
        (dict(enumerate(CORPUS.values())), dict(enumerate(QUERIES.values())), True),
    ],
)
def test_positions_of_a_passage_and_a_query_are_equal_by_chance(
    corpus: Any, queries: Any, by_chance: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions: list[str] = []

    def climbing(preset: str, dataset: str, changes: list[str], *others: Any) -> None:
        positions.extend(changes)
        raise UserError("seen")

    monkeypatch.setattr(calls, "climbing", climbing)
    with pytest.raises(UserError, match="seen"):
        compare(corpus, queries, LABELS, root=tmp_path)
    assert ("ingest.ignore_identical_ids=false" in positions) == by_chance


@pytest.mark.parametrize(
    ("corpus", "queries", "labels", "message"),
    [
        (
            CORPUS,
            QUERIES,
            {**LABELS, "q0": {"p99": 1}},
            r"label of an unknown passage \(qrels/train.tsv line 2: 'p99'\)",
        ),
        (CORPUS, QUERIES, {**LABELS, "q99": {"p0": 1}}, "label of an unknown query"),
        ({}, QUERIES, LABELS, "empty corpus"),
        ({**CORPUS, 1: "one", "1": "another"}, QUERIES, LABELS, r"duplicate passage id \(corpus.jsonl line 32: '1'\)"),
        (CORPUS, None, None, "has passages but no queries"),
        (CORPUS, QUERIES, {**LABELS, "q0": {"p0": "high"}}, "relevance that is not an integer"),
        ({**CORPUS, "p0": 3.5}, QUERIES, LABELS, "is missing or not a string"),
        ({**CORPUS, "p0": b"x"}, QUERIES, LABELS, "the text with the id 'p0' is a bytes"),
        (pd.DataFrame({"_id": ["p0"], "text": ["x"]}), QUERIES, LABELS, "the text with the id '_id' is a Series"),
        (pd.Series(CORPUS), pd.Series({**QUERIES, "q0": 1}), LABELS, "is missing or not a string"),
        (CORPUS, QUERIES, [["p0"]], r"labels are a list: give \{query: \{passage: relevance\}\}"),
        (CORPUS, QUERIES, {**LABELS, "q0": None}, "label of an unknown passage"),
        (CORPUS, QUERIES, {**LABELS, "q0": "\ud800"}, "not UTF-8"),
        ("no-such-folder", QUERIES, None, "leave out queries, qrels and test"),
        ("no-such-folder", None, None, "no-such-folder"),
    ],
)
def test_what_is_not_usable_is_one_line(
    corpus: Any, queries: Any, labels: Any, message: str, tmp_path: Path, tiny_backbone: Path
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        compare(corpus, queries, labels, root=tmp_path, encoder=str(tiny_backbone))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"until": "label"}, "did you mean 'labels'"),
        ({"budget": "soon"}, "--budget soon: write it as 30m"),
        ({"settings": {"evaluate.permutation": 5}}, "unknown setting evaluate.permutation"),
        ({"settings": {"evaluate.permutations": object()}}, "evaluate.permutations is a object"),
        ({"encoder": "no/such/model"}, "no/such/model"),
        ({"encoder": Path("no/such/model")}, "no/such/model"),
        ({"budget": 5}, "--budget 5: write it as 30m"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNN_ENCODER_ROOT", str(tmp_path / "root"))
    with pytest.raises(UserError, match=message):
        compare(CORPUS, QUERIES, LABELS, **changes)


def report_of(folder: Path) -> Report:
    """A report of three systems, of which two are equal, with its charts as the step has them."""
    values = np.random.default_rng(0).random((120, len(NAMES)))
    systems = {"BM25": values * 0.8, "Untrained": values, "Query sum": values}
    how: dict[str, Any] = {"permutations": 200, "resamples": 50, "seed": 0, "baseline": "BM25"}
    metrics = {
        **block({"dev": systems, "test": systems}, NAMES, **how),
        "detectable": {split: detectable_differences(systems, NAMES, baseline="BM25") for split in ("dev", "test")},
        "strata": {}, "fusions": {}, "headline_split": "test", "test": "randomization", "baseline": "BM25",
        "candidate": "Query sum", "recommendation": {"system": "Untrained"},
        "costs": {"BM25": {"ms": 0.51, "megabytes": 2.0}, "Untrained": {"ms": 12.25, "megabytes": 80.0}},
    }  # fmt: skip
    with drafting(folder, "report") as draft:
        Report.write(draft, metrics=metrics, plots=report_charts(metrics, {}), page="")
    return Report.read(folder)


def test_the_table_has_the_reports_figures(tmp_path: Path) -> None:
    report = report_of(tmp_path / "report")
    table, metrics = Comparison.of(report), report.metrics
    assert isinstance(table, pd.DataFrame) and [*table.index] == ["Untrained", "BM25"]
    for system, row in table.iterrows():
        means = metrics["results"]["test"][system]
        assert [row[mean_name(name)] for name in metrics["measures"]] == [means[name] for name in metrics["measures"]]
        assert [row["low"], row["high"]] == metrics["intervals"]["test"][system]["RR@10"]
        assert row["MRR@10 dev"] == metrics["results"]["dev"][system]["RR@10"]
        assert row["ms"] == metrics["costs"][system]["ms"]
    assert table.loc["Untrained", "p"] == metrics["p_holm"]["test"]["Untrained"]["RR@10"]
    assert pd.isna(table.loc["BM25", "p"]), "the baseline"
    assert [*table["recommended"]] == [True, False] and [*table["same figures"]] == ["Query sum", ""]
    assert type(table[["MRR@10"]]) is pd.DataFrame and table.sort_values("ms").index[0] == "BM25"


def test_a_notebook_displays_the_table_and_the_reports_picture(tmp_path: Path) -> None:
    report = report_of(tmp_path / "report")
    shown = Comparison.of(report)._repr_html_()
    assert "<p>Use Untrained: MRR@10 " in shown and "Untrained ★" in shown and ">nan<" not in shown.lower()
    (frame,) = re.findall(r'<iframe [^>]*srcdoc="([^"]*)"', shown)
    specs = re.findall(r'<script type="application/json">(.*?)</script>', html.unescape(frame), re.DOTALL)
    drawn = json.loads((report.path / "plots" / "systems.vl.json").read_text())
    assert [json.loads(spec) for spec in specs] == [drawn], "the report's, and no other"
    assert "src=" not in re.sub(r"<script>.*?</script>", "", html.unescape(frame), flags=re.DOTALL), "no network"


SETTINGS = {
    "encode.query_length": 16, "encode.passage_length": 24, "fuse_parts.kinds": ["linear"],
    "encode_with_labels.kinds": [], "evaluate.permutations": 50, "evaluate.resamples": 20, "evaluate.precision": "fp32",
}  # fmt: skip


@pytest.mark.slow
def test_the_figures_are_those_of_the_command_line(
    tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    ids, passages = tiny_dataset.queries.column("query_id").to_pylist(), next(tiny_dataset.passages.stream())
    corpus: dict[str | int, Any] = {
        key: {"title": title, "text": text}
        for key, title, text in zip(passages.ids, passages.titles, passages.texts, strict=True)
    }
    queries = dict(zip(ids, tiny_dataset.queries.column("text").to_pylist(), strict=True))
    train, dev, test = (
        {ids[q]: {passages.ids[p]: 1} for q, p in zip(labels.query, labels.passage, strict=True)}
        for labels in map(tiny_dataset.split_qrels, ("train", "dev", "test"))
    )
    arguments: dict[str, Any] = {"test": test, "encoder": str(tiny_backbone), "root": root, "settings": SETTINGS}
    table = compare(corpus, queries, {**train, **dev}, **arguments)
    (folder,) = (root / "texts").iterdir()
    changes = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    of_command = ["--until", "labels", "--encoder", str(tiny_backbone), "--root", str(tmp_path / "other")]
    assert call("run", "--dataset", str(folder), *of_command, *changes) == 0
    assert "--budget 30m instead of --until labels climbs on" in capsys.readouterr().out
    metrics = Report.read(tmp_path / "other" / "latest" / "report").metrics
    assert table.metrics["results"] == metrics["results"] and table.metrics["intervals"] == metrics["intervals"]
    assert table.metrics["recommendation"]["system"] == metrics["recommendation"]["system"]

    result = run(corpus, queries, {**train, **dev}, until="labels", **arguments)
    assert isinstance(result, Result) and result.table.equals(table) and result.report.is_file()
    assert [hit.rank for hit in result.retriever.search("what is the old river", 3)] == [1, 2, 3]
    (chosen,) = table.index[table["recommended"]]
    measures = ("RR@10", "nDCG@10", "R@50")
    others = {name: Retriever.load(root / "latest" / place_of(name)) for name in ("BM25", "Untrained")}
    for system, retriever in {chosen: result, **others}.items():
        expected = {mean_name(name): pytest.approx(table.loc[system, mean_name(name)], abs=0.01) for name in measures}
        assert evaluate(retriever, queries, test, measures) == expected
    assert evaluate(others["BM25"], queries, test, measures) != expected, "a control"
    with pytest.raises(UserError, match="empty corpus"):
        run([], queries, train, root=root)
    same = compare(write_beir(tiny_dataset, tmp_path / "beir"), **{**arguments, "test": None})
    assert set(same.index) == set(table.index), "of a folder"


def cells() -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    return content


def test_the_notebook_is_stripped_and_compiles() -> None:
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) > 3 and not any(cell["outputs"] or cell["execution_count"] for cell in code)
    for cell in code:
        compile("".join(cell["source"]), NOTEBOOK.name, "exec")


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, cell by cell; a cell's last expression is displayed as a notebook does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GNN_ENCODER_ROOT", raising=False)
    scope: dict[str, Any] = {}
    shown: list[str] = []
    monkeypatch.setattr("sys.displayhook", lambda value: shown.append(getattr(value, "_repr_html_", value.__repr__)()))
    for cell in cells():
        if cell["cell_type"] == "code":
            *body, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(body, []), NOTEBOOK.name, "exec"), scope)
            exec(compile(ast.Interactive([last]), NOTEBOOK.name, "single"), scope)
    assert scope["table"].loc["BM25", "MRR@10"] > 0.1
    assert any("<iframe" in text for text in shown)
