"""An artifact is there whole or not at all."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from manifests import write_artifact

from gnn_encoder.artifacts.folder import (
    LEAST_SHARED,
    MANIFEST,
    VERSIONS,
    Artifact,
    Draft,
    digest_of,
    drafting,
    folder_digest,
    read_manifest,
)
from gnn_encoder.errors import UserError


def test_round_trip(tmp_path: Path) -> None:
    manifest = read_manifest(write_artifact(tmp_path / "run"), "run")
    assert (manifest.schema, manifest.version, manifest.rows) == ("run", VERSIONS["run"], {"lines": 3})
    assert set(manifest.files) == {"b.bin", "sub/a.txt"} and manifest.files["b.bin"].bytes == 100
    assert read_manifest(tmp_path / "run") == manifest


def test_who_reads_the_folder_reads_its_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with drafting(tmp_path / "a", "model") as draft:
            (draft / "weights").write_text("w")
            (draft / "weights").chmod(0o600)
        (tmp_path / "a" / "weights").chmod(0o600)
        with drafting(tmp_path / "b", "model") as draft:
            draft.share(Artifact(tmp_path / "a", read_manifest(tmp_path / "a")), "weights")
    finally:
        os.umask(before)
    for folder in (tmp_path / "a", tmp_path / "b"):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert modes == {"weights": 0o640, "manifest.json": 0o640}


def test_a_file_of_an_input_takes_no_space_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large, other, small = (os.urandom(size) for size in (LEAST_SHARED, LEAST_SHARED, LEAST_SHARED - 1))

    def written(name: str, *inputs: Path) -> Path:
        with drafting(tmp_path / name, "run", inputs) as draft:
            (draft / "sub").mkdir()
            for file, content in {"sub/large": large, "other": large if inputs else other, "small": small}.items():
                (draft / file).write_bytes(content)
        return tmp_path / name

    first = written("first")
    shared = written("shared", first)
    for file, of_input in {"sub/large": True, "other": True, "small": False}.items():
        source = first / ("small" if file == "small" else "sub/large")
        assert (shared / file).samefile(source) == of_input
    assert {p.name for p in shared.rglob("*") if p.is_file()} == {MANIFEST, "large", "other", "small"}
    assert not written("alone").joinpath("sub/large").samefile(first / "sub/large"), "without an input each has its own"

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    copied = written("copied", first)
    assert not (copied / "sub/large").samefile(first / "sub/large")
    assert read_manifest(copied).digest == read_manifest(shared).digest
    shutil.rmtree(first)
    assert (shared / "sub/large").read_bytes() == large and read_manifest(shared)


def test_digest_is_of_the_contents(tmp_path: Path) -> None:
    digests = [read_manifest(write_artifact(tmp_path / n, c)).digest for n, c in (("1", "x"), ("2", "x"), ("3", "y"))]
    assert digests[0] == digests[1] != digests[2]
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 2, "b": 1})


def test_a_failed_writer_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), drafting(tmp_path / "run", "run") as draft:
        (draft / "half.bin").write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_failed_writer_leaves_the_old_artifact(tmp_path: Path) -> None:
    before = read_manifest(write_artifact(tmp_path / "run"))
    with pytest.raises(ValueError, match="no"), drafting(tmp_path / "run", "run"):
        raise ValueError("no")
    assert read_manifest(tmp_path / "run") == before


def test_a_killed_writer_leaves_no_artifact_and_the_next_cleans_up(tmp_path: Path) -> None:
    code = f"""
        import os, signal
        from pathlib import Path
        from gnn_encoder.artifacts.folder import drafting
        with drafting(Path({str(tmp_path)!r}) / "run", "run") as draft:
            (draft / "half.bin").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert ended.returncode == -signal.SIGKILL
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".run.partial-")
    for path in (tmp_path / "run", leftover):
        with pytest.raises(UserError, match="not a complete artifact"):
            read_manifest(path)
    other = Draft(tmp_path / "run2", "run")
    assert leftover.exists(), "another target's leftovers are not ours"
    other.path.rmdir()
    write_artifact(tmp_path / "run")
    assert [p.name for p in tmp_path.glob("[!.]*")] == ["run"] and not list(tmp_path.glob(".*partial*"))


def test_writing_again_replaces(tmp_path: Path) -> None:
    write_artifact(tmp_path / "run", "old")
    write_artifact(tmp_path / "run", "new")
    assert (tmp_path / "run" / "sub" / "a.txt").read_text() == "new"


def test_folder_digest_sees_names_and_contents(tmp_path: Path) -> None:
    for name, file, text in (("1", "a", "x"), ("2", "a", "x"), ("3", "b", "x"), ("4", "a", "y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    digests = [folder_digest(tmp_path / name) for name in "1234"]
    assert digests[0] == digests[1] and len(set(digests)) == 3
