"""The commands of the tutorials are run as a reader runs them, in order, in a folder of their own, on tiny data."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import PROJECT, blocks

TINY = (
    "ingest.max_passages=90", "train_dpr.epochs=1", "train_cross_encoder.epochs=1", "train_converged.epochs=0",
    "train_query_generator.max_pairs=20", "generate_queries.max_passages=20", "train_dual_encoder.epochs=1",
    "shared.passage_length=24",
)  # fmt: skip
"""Changes of the quickstart, so that it takes a minute instead of five."""
PROGRAM = """#!/bin/sh
case "$1 $*" in
  run*quickstart*|retrain*quickstart*) set -- "$@" {changes} ;;
esac
exec {python} -c 'import sys; sys.argv[0] = "gnn-encoder"; from gnn_encoder.cli.app import main; main()' "$@"
"""
MAKE = """#!/bin/sh
[ "$1" = run ] && exec gnn-encoder run --preset quickstart
echo "no target $1 here" >&2; exit 2
"""


def script(*tutorials: str) -> str:
    """The blocks of tutorials as one script; what a mark excludes is left out."""
    lines = ["set -eu"]
    for tutorial in tutorials:
        for block in blocks((PROJECT / "docs" / "tutorials" / f"{tutorial}.md").read_text("utf-8")):
            if block.runs and block.language == "bash":
                lines.append(block.text)
            elif block.runs and block.language == "python":
                lines.append(f"python3 - <<'PYTHON'\n{block.text}PYTHON\n")
    return "\n".join(lines)


def follow(folder: Path, text: str) -> str:
    """Runs a script where `gnn-encoder`, `make` and `python3` are this project's, and returns what it prints."""
    changes = " ".join(f"--set '{change}'" for change in TINY)
    programs = {
        "gnn-encoder": PROGRAM.format(changes=changes, python=sys.executable),
        "make": MAKE,
        "python3": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }
    for name, lines in programs.items():
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(lines)
        (folder / "bin" / name).chmod(0o755)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    with socket.create_server(("127.0.0.1", 0)) as free:
        text = text.replace("8000", str(free.getsockname()[1]))
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), *sys.path])}
    ran = subprocess.run(["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, f"{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    return ran.stdout


@pytest.mark.slow
def test_quickstart_then_serve(tmp_path: Path) -> None:
    printed = follow(tmp_path, script("quickstart", "serve"))
    assert "GNN-encoder" in printed and '"passage_id"' in printed and '"labels":1' in printed
    assert "nothing to do" in printed
    for path in ("why.html", "gnn-encoder-runs/latest/report/report.html", "my-encoder/modules.json", "my-vectors"):
        assert (tmp_path / path).exists(), path


@pytest.mark.slow
def test_documents(tmp_path: Path) -> None:
    (tmp_path / "docs" / "guides").mkdir(parents=True)
    for name in ("labels.md", "export.md", "updates.md", "serve.md"):
        shutil.copy(PROJECT / "docs" / "guides" / name, tmp_path / "docs" / "guides" / name)
    assert "labels.md#" in follow(tmp_path, script("documents"))


@pytest.mark.slow
def test_own_labels_and_logs(tmp_path: Path) -> None:
    printed = follow(tmp_path, script("labels"))
    assert "warm" in printed and "new1" in printed
    assert (tmp_path / "from-log" / "latest" / "bundle").exists()


@pytest.mark.slow
def test_cluster(tmp_path: Path) -> None:
    follow(tmp_path, script("cluster"))
    assert "ingest" in (tmp_path / "quickstart.yaml").read_text("utf-8")


def test_a_command_that_fails_is_seen(tmp_path: Path) -> None:
    """The control, and each tutorial has something to run."""
    with pytest.raises(AssertionError, match="no target no here"):
        follow(tmp_path, "set -eu\nmake no\necho after")
    for tutorial in ("quickstart", "documents", "labels", "serve", "cluster"):
        assert "gnn-encoder" in script(tutorial)
