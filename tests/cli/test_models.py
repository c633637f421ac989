"""`gnn-encoder models …`, and `models:/…` as a bundle's name, on a real store and real bundles."""

import os
import re
from pathlib import Path

import pytest
from command_line import call
from gate_inputs import write_bundle
from registered import register

from gnn_encoder.artifacts import Dataset
from gnn_encoder.errors import UserError
from gnn_encoder.promotion.registry import CHAMPION, PREVIOUS, named_bundle, open_registry, parse_name


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> Path:
    """Three versions; the first finds nothing, the second, which is the champion, everything."""
    folder = tmp_path_factory.mktemp("root")
    models = open_registry(f"sqlite:///{folder / 'mlflow.db'}", "gnn-encoder")
    for number, hits in ((1, 0), (2, 20)):
        bundle = write_bundle(folder / f"bundle-{number}", tiny_dataset, tiny_backbone, hits)
        tags = {"decision": "promote", "reason": f"because [{number}]"}
        models.promote(register(models, str(bundle), tags, {"test/RR@10": hits / 20}, "# The card"))
    register(models, str(folder / "gone"), {"decision": "keep", "reason": "worse"})
    return folder


@pytest.mark.slow
def test_versions_are_listed_and_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("models", "list", "--root", str(root)) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines() if re.match(r"\d", line)]
    assert [(row[0], row[1]) for row in rows[1:]] == [("2", "champion"), ("1", "previous")]
    assert rows[0][0] == "3" and "keep" in rows[0] and "because [2]" in shown
    assert call("models", "show", "champion", "--root", str(root)) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^version +2$", shown, re.M) and re.search(r"^metric.test/RR_at_10 +1$", shown, re.M)
    assert re.search(rf"^bundle +{root}/bundle-2$", shown, re.M) and shown.endswith("# The card\n")


@pytest.mark.slow
def test_after_a_rollback_search_answers_with_the_former_model(
    root: Path, tiny_dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tiny_dataset.split_qrels("test")
    (question,) = tiny_dataset.query_texts(labels.query[:1])
    positive = f"[p{labels.passage[0]}]"

    def is_first() -> bool:
        named = ["--bundle", "models:/gnn-encoder@champion", "--root", str(root)]
        assert call("search", question, "-k", "1", *named) == 0
        return positive in capsys.readouterr().out

    assert is_first()
    assert call("models", "rollback", "--root", str(root)) == 0
    assert "version 1 of gnn-encoder is the champion again" in capsys.readouterr().out
    assert not is_first()
    assert call("models", "promote", "2", "--root", str(root)) == 0
    assert capsys.readouterr().out == "version 2 of gnn-encoder is the champion\n"
    assert is_first()
    models = open_registry(f"sqlite:///{root / 'mlflow.db'}", "gnn-encoder")
    assert (models.find(CHAMPION).number, models.find(PREVIOUS).number) == ("2", "1")


def test_versions_are_evaluated_and_compared(
    root: Path, tiny_dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [f"--bundle=models:/gnn-encoder/{number}" for number in (1, 2)]
    where = ["--dataset", str(tiny_dataset.path), "--root", str(root), "--measures", "RR@10"]
    assert call("evaluate", *named, *where) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines() if "/1 " in line or "/2 " in line]
    assert [row[1] for row in rows] == ["0.0000", "1.0000"] and "+1.0000" in rows[1]
    assert "20 queries with a positive label" in shown


def test_a_version_is_its_bundle_or_latest_where_that_leads_to_it(root: Path, tmp_path: Path) -> None:
    first = (root / "bundle-1").resolve()
    assert named_bundle("models:/gnn-encoder/1", root) == first
    (root / "latest").mkdir()
    (root / "latest" / "bundle").symlink_to(first)
    assert named_bundle("models:/gnn-encoder/1", root) == root / "latest" / "bundle"
    assert named_bundle("models:/gnn-encoder/2", root) == (root / "bundle-2").resolve()
    assert named_bundle(str(tmp_path), root) == tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "show", "9"], "no version or alias '9' of the model 'gnn-encoder': there are 3, 2, 1"),
        (["models", "promote", "challenger"], "no version or alias 'challenger'"),
        (["models", "list", "--model-name", "other"], "no version of the model 'other' is registered"),
        (["models", "rollback", "--model-name", "other"], "'other' has no previous champion"),
        (["search", "what", "--bundle", "models:/gnn-encoder@best"], "no version or alias 'best'"),
        (["search", "what", "--bundle", "models:/gnn-encoder"], "write models:/NAME@ALIAS"),
        (["search", "what", "--bundle", "models:/gnn-encoder/3"], "gone is not a complete artifact"),
        (["evaluate", "--bundle", "models:/gnn-encoder/2"], "latest/dataset is not a complete artifact"),
        (["evaluate", "--bundle", "a", "--qrels", "b"], "--run with --qrels, or --bundle: give one of the two"),
        (["explain", "what", "--bundle", "models:/gnn-encoder/2"], "beside it, and without nothing can be explained"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    root: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments, "--root", str(root)) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "command", [["models", "list"], ["search", "what", "--bundle", "models:/gnn-encoder@champion"]]
)
def test_a_server_that_is_away_is_given_up_soon(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert call(*command, "--root", str(tmp_path)) == 2
    assert "cannot use the MLflow store http://127.0.0.1:1" in capsys.readouterr().err
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_nothing_is_made_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no runs under"):
        named_bundle("models:/gnn-encoder@champion", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("models:/gnn-encoder@champion", ("gnn-encoder", "champion")),
        ("models:/my model/12", ("my model", "12")),
        ("some/folder", None),
        ("s3://bucket/models:/x", None),
    ],
)
def test_names_of_versions(text: str, meant: tuple[str, str] | None) -> None:
    assert parse_name(text) == meant


@pytest.mark.parametrize("text", ["models:/", "models:/x", "models:/x@", "models:/x/1/2", "models:/@champion"])
def test_a_name_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="write models:/NAME@ALIAS or models:/NAME/VERSION"):
        parse_name(text)
