"""Output to streams whose encoding is not UTF-8: every command answers, and no run breaks off by what it prints."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bundles import fill_bundle
from command_line import call
from rich.console import Console

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.cli import app
from gnn_encoder.cli.console import LiveStages, followed, show_failure
from gnn_encoder.engines.local_run import Outcome, _environment
from gnn_encoder.engines.supervision import Event, Show
from gnn_encoder.errors import NEAREST, print_any_text

ENCODINGS = ("latin-1", "cp1252", "ascii", "shift_jis")
SIGNS = "".join(NEAREST)


class Terminal:
    """A block in which stdout and stderr are strict streams of an encoding, and what was printed there."""

    def __init__(self, encoding: str) -> None:
        self._encoding, self._written = encoding, io.BytesIO()

    def __enter__(self) -> None:
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(self._written, encoding=self._encoding, write_through=True) for _ in self._before
        )

    def __exit__(self, *_: object) -> None:
        streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._before
        for stream in streams:
            stream.flush()
        self.text = self._written.getvalue().decode(self._encoding)
        for stream in streams:
            stream.detach()  # type: ignore[attr-defined]


@pytest.fixture(params=ENCODINGS)
def terminal(request: pytest.FixtureRequest) -> Terminal:
    return Terminal(request.param)


@pytest.fixture(scope="module")
def trec(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("trec")
    (folder / "a.qrels").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    (folder / "a.trec").write_text("q1 Q0 d1 1 2.5 t\nq2 Q0 d2 1 1 t\n")
    return ["evaluate", "--run", str(folder / "a.trec"), "--qrels", str(folder / "a.qrels"), "--measures", "RR@10"]


def test_figures_are_printed(terminal: Terminal, trec: list[str]) -> None:
    with terminal:
        assert call(*trec) == 0
    assert "1.0000" in terminal.text


def test_signs_of_the_program_keep_their_width_and_all_others_are_escaped(terminal: Terminal) -> None:
    with terminal:
        print_any_text()
        Console().print(SIGNS, markup=False, highlight=False, soft_wrap=True)
        print("é 東京 ✓ \udce9")
    signs, text, rest = terminal.text.split("\n")
    assert (
        len(signs) == len(SIGNS) and all(a in (b, NEAREST[b]) for a, b in zip(signs, SIGNS, strict=True)) and not rest
    )
    assert text.endswith("\\udce9") and text.count("\\") <= 4 and ("東京" in text or "\\u6771\\u4eac" in text)


def test_marks_of_good_and_bad_differ(terminal: Terminal, tmp_path: Path) -> None:
    sizes = ["--preset", "quickstart", "--passages", "10000000000", "--queries", "1000"]
    with terminal:
        assert call("doctor", "--root", str(tmp_path), *sizes) == 2
    lines = terminal.text.splitlines()
    assert [line[0] for line in lines if "python  " in line or "the run  " in line] == ["+", "x"]
    assert "checks failed" in lines[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["presets"], ["search", "x", "--wrong …"]])
def test_help_and_refusals_are_printed(terminal: Terminal, arguments: list[str]) -> None:
    with terminal:
        assert call(*arguments) == (2 if "search" in arguments else 0)
    assert len(terminal.text) > 100


def test_passages_in_any_script_are_printed(terminal: Terminal, tiny_backbone: Path, tmp_path: Path) -> None:
    import numpy as np

    from gnn_encoder.models.dual_encoder import DualEncoder

    texts = ["тихая река …", "静かな川 – ✓", "the old river"]
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p-é", "p-川", "p-1"], ["→", "", ""], texts)
        writer.queries(["q"], ["old river"], ["test"], [[]])
        writer.qrels(["q"], ["p-1"], [1], [0], [2])
        writer.close()
    encoders = DualEncoder.from_backbone(
        str(tiny_backbone), pooling="mean", normalize="yes", query_length=16, passage_length=24, share_encoders=False
    )
    with drafting(tmp_path / "bundle", "bundle") as draft:
        vectors = np.eye(3, 32, dtype=np.float32)
        fill_bundle(draft, vectors, Dataset(tmp_path / "dataset"), encoders.query_encoder.save)
    with terminal:
        assert call("search", "old river", "--bundle", str(tmp_path / "bundle"), "-k", "3") == 0
    assert terminal.text.count("[p-") == 3 and "the old river" in terminal.text


EVENTS: list[Event] = [
    {"step": "", "event": "run", "time": 0.5, "stages": {"ingest": "prepare"}, "log": "log"},
    {"step": "ingest", "event": "starting", "time": 1.0},
    {"step": "ingest", "event": "started", "time": 2.0, "pid": 1},
    {"step": "ingest", "event": "note", "time": 2.5, "message": SIGNS},
    {
        "step": "ingest",
        "event": "progress",
        "time": 20.0,
        "stage": "川 …",
        "done": 1,
        "total": 2,
        "unit": "é",
        "note": "→",
    },
    {"step": "ingest", "event": "finished", "time": 40.0, "metrics": {"headline": "0.1 → 0.2 – ✓ 東京"}},
]


def test_a_run_goes_on_whatever_its_steps_say(terminal: Terminal) -> None:
    def job(show: Show) -> Outcome:
        for event in EVENTS:
            show([event])
        return Outcome("FINISHED", Path("log"))

    with terminal:
        print_any_text()
        assert followed(job).status == "FINISHED"
        screen = LiveStages(Console(force_terminal=True, width=60))
        screen.show(EVENTS[:-1])
        screen.close()
        show_failure(Outcome("FAILED", Path("log …"), "ingest", "– \u6771"))
    assert "done" in terminal.text and "error: ingest" in terminal.text


def test_the_log_of_a_run_is_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read as UTF-8, whatever the terminal of the run has."""
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    program = [sys.executable, "-c", "print('– 東京 ✓')"]
    environment = _environment(tmp_path, "a run")
    assert subprocess.run(program, env=environment, stdout=subprocess.PIPE, check=True).stdout.decode() == "– 東京 ✓\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_new_process_answers(trec: list[str], variables: dict[str, str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(app.__file__).parents[2]), **variables}
    command = [sys.executable, "-c", "from gnn_encoder.cli.app import main; main()", *trec]
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert b"1.0000" in ended.stdout and ended.stdout.decode("latin-1").isascii()
