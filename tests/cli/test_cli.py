"""The command line: help, exit codes, one line per mistake."""

import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from command_line import call
from typer.testing import CliRunner

import gnn_encoder
from gnn_encoder.cli import app
from gnn_encoder.cli.console import show_failure
from gnn_encoder.engines.local_run import Outcome


def fresh(source: str) -> subprocess.CompletedProcess[str]:
    package = str(Path(app.__file__).parents[2])
    source = f"import sys; sys.path.insert(0, {package!r}); {source}"
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'mlflow', 'kfp', 'numpy', 'pandas', 'pyarrow'}"
    began = time.monotonic()
    ended = fresh(
        "sys.argv[1:] = ['--help']\nfrom gnn_encoder.cli.app import main\ntry: main()\n"
        f"finally: print('heavy:', {heavy} & set(sys.modules))"
    )
    assert time.monotonic() - began < 5  # 0.5 s on an idle machine; the line below is the guard
    assert ended.returncode == 0
    assert "heavy: set()" in ended.stdout
    commands = (
        "run submit runs schedule update retrain ablate models labels data compile prune rerank serve "
        "watch export doctor search copy explain evaluate dashboard presets"
    )
    for command in commands.split():
        assert command in ended.stdout


def test_the_version_says_those_of_the_models_libraries_and_imports_none() -> None:
    ended = fresh(
        "sys.argv[1:] = ['--version']\nfrom gnn_encoder.cli.app import main\ntry: main()\n"
        "finally: print({'torch', 'transformers'} & set(sys.modules))"
    )
    words = ended.stdout.splitlines()[0].split(", ")
    assert words[0] == gnn_encoder.__version__
    assert words[-2:] == [f"{name} {version(name)}" for name in ("torch", "transformers")]
    assert all(word.startswith("commit ") for word in words[1:-2]) and "set()" in ended.stdout


@pytest.mark.slow
def test_the_library_imports_without_kfp() -> None:
    ended = fresh(
        "sys.modules['kfp'] = None\n"
        "import importlib, pkgutil, gnn_encoder\n"
        "for module in pkgutil.walk_packages(gnn_encoder.__path__, 'gnn_encoder.'):\n"
        "    importlib.import_module(module.name)\n"
        "    print(module.name)\n"
    )
    assert ended.returncode == 0, ended.stderr
    assert {"gnn_encoder.engines.local", "gnn_encoder.pipelines.train"} <= set(ended.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--preset", "quikstart"], "error: no preset 'quikstart': choose one of"),
        (
            ["run", "--preset", "quickstart", "--set", "train_gnn.epoch=3"],
            "unknown setting train_gnn.epoch: did you mean",
        ),
        (["run", "--preset", "quickstart", "--set", "train_gnn.epochs=none"], "train_gnn.epochs"),
        (["run", "--preset", "quickstart", "--dataset", "no/such/folder"], "no/such/folder"),
        (["run", "--preset", "obliqa"], "no data set: give one with --dataset"),
        (["run", "--preset", "quickstart", "--set", "train_gnn.heads=5"], "train_gnn.heads = 5: must divide"),
        (
            ["run", "--preset", "quickstart", "--set", "train_gnn.nodes=2"],
            "train_gnn.nodes = 2: nodes are pods of a cluster; on this machine set train_gnn.processes instead",
        ),
        (
            ["rerank", "--preset", "quickstart", "--set", "train_reranker.nodes=2"],
            "train_reranker.nodes = 2: nodes are pods of a cluster; on this machine set train_reranker.processes",
        ),
        (
            ["rerank", "--systems", "ss_bert_h", "--preset", "quickstart", "--set", "train_query_generator.nodes=2"],
            "train_query_generator.nodes = 2: nodes are pods of a cluster",
        ),
        (["run", "--preset", "quickstart", "--set", "shared.backbone=/no/model"], "/no/model"),
        (["data", "check", "no/such/folder"], "no/such/folder"),
        (["run", "--preset", "quickstart", "--memory", "6g"], "--memory limits containers: add --runner docker"),
        (["search", "what", "--bundle", "no/such/bundle"], "no bundle no/such/bundle: name a folder such as"),
        (["search", "what", "--bundle", "~no-such-user/bundle"], "~no-such-user/bundle: there is no such user"),
        (["run", "--preset", "quickstart", "--dataset", "~no-such-user/x"], "~no-such-user/x: there is no such user"),
        (["data", "check", "~no-such-user/x"], "~no-such-user/x: there is no such user"),
        (["run", "--preset", "quickstart", "--root", "~no-such-user/x"], "~no-such-user/x: there is no such user"),
        (["models", "list", "--root", "~no-such-user/x"], "~no-such-user/x: there is no such user"),
        (["update", "--from", "~no-such-user/x"], "~no-such-user/x: there is no such user"),
        (["run", "--preset", "quickstart", "--root", ""], "--root is empty"),
        (["dashboard", "--root", "r\udcff"], r"'r\udcff' is not UTF-8"),
        (["search", "what\udcff", "--bundle", "b"], r"'what\udcff' is not UTF-8"),
        (["evaluate", "--run", "r\udcff", "--qrels", "q"], r"'r\udcff' is not UTF-8"),
        (["explain", "what", "--bundle", "no/such/bundle"], "no bundle no/such/bundle: name a folder such as"),
        (["dashboard", "--root", "no/such/root"], "no runs under"),
        (["models", "list"], "no runs under"),
        (["search", "what", "--bundle", "models:/gnn-encoder@champion"], "no runs under"),
        (["retrain", "--preset", "obliqa"], "no data set: give one with --dataset"),
        (["evaluate", "--run", "no/run", "--qrels", "no/qrels"], "No such file or directory: no/qrels"),
        (["evaluate", "--run", "a", "--qrels", "b", "--measures", "AP MRR"], "--measures 'AP MRR': MRR is no measure"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not (tmp_path / "gnn-encoder-runs" / "mlflow.db").exists()


@pytest.mark.parametrize("arguments", ["rum", "run", "search", "search x --bundle b -k 0"])
def test_wrong_usage_is_exit_code_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments.split()) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        "search x --bundle b -k 99999999999",
        "search x --bundle b --weight nan",
        "explain x --bundle b --neighbors 99999999999",
        "dashboard --port 65536",
        "ablate --preset quickstart --seeds 100000",
    ],
)
def test_a_number_out_of_range_is_refused(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*arguments.split()) == 2
    assert "Invalid value" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--study", "gate"], ["--seeds", "2"], ["--mode", "joint"], ["--variant", "a: b=c"]])
def test_a_study_of_re_rankers_runs_alone(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ablate", "--preset", "quickstart", "--study", "ss_bert", *more) == 2
    printed = capsys.readouterr().err
    assert "--study ss_bert runs alone" in printed and printed.count("\n") == 1


def test_an_unwritable_root_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert call("run", "--preset", "quickstart", "--root", str(tmp_path / "file" / "root")) == 2
    assert "cannot write to" in capsys.readouterr().err


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("presets") == 0
    assert "quickstart" in capsys.readouterr().out


def test_a_failure_is_one_block_that_says_how_to_go_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    failed = Outcome("FAILED", tmp_path / "a.log", failed_step="ingest", message="it is wrong", user_error=True)
    show_failure(failed)
    shown = capsys.readouterr().err
    assert "error: ingest: it is wrong\n" in shown
    assert str(tmp_path / "a.log") in shown
    assert "The same command goes on" in shown
    codes = [
        Outcome(status, user_error=user).exit_code for status, user in (("FINISHED", 0), ("FAILED", 0), ("KILLED", 0))
    ]
    assert [*codes, failed.exit_code] == [0, 1, 130, 2]


def test_a_failure_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    message = "no data in \x1b]0;title\x07 \x1b[2J\u202e; the log ends with\n\x9b31mred\rover it"
    show_failure(Outcome("FAILED", tmp_path / "a.log", failed_step="ingest", message=message))
    shown = capsys.readouterr().err
    assert "error: ingest: no data in  ]0;title   [2J ; the log ends with\n 31mred over it\n" in shown
    assert not any(character in shown for character in "\x1b\x07\x9b\r\u202e")


def test_an_update_refuses_what_it_would_not_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("update", "--root", str(tmp_path)) == 2
    assert "no finished run at" in capsys.readouterr().err
    assert call("update", "--root", str(tmp_path), "--set", "train_gnn.epochs=9") == 2
    assert (
        "an update runs ingest, index_bm25, write_queries, select_queries, build_graph, encode_with_labels, "
        "make_parts, fuse_parts, encode_corpus, choose_bundle" in capsys.readouterr().err
    )


def test_help_shows_what_a_help_text_has_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich's markup would take `[training]` for a style, and show nothing; the controls are words without brackets."""
    monkeypatch.setenv("COLUMNS", "200")
    for command, words in {
        "submit": ("[training]", "Follow the run"),
        "compile": ("[gnn-encoder-PIPELINE.yaml]",),
        "retrain": ("[minilm]", "gnn-encoder-runs"),
        "judge": ("[people alone]", "[ROOT/latest/bundle]"),
    }.items():
        shown = " ".join(CliRunner().invoke(app.app, [command, "--help"]).output.replace("│", " ").split())
        for word in words:
            assert word in shown, f"{command}: {word}"
