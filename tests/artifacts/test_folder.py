"""An artifact is there whole or not at all, and a reader says in one line what is wrong with it."""

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from gnn_encoder.artifacts.folder import (
    MANIFEST,
    VERSIONS,
    Draft,
    digest_of,
    drafting,
    folder_digest,
    read_manifest,
    verify,
)
from gnn_encoder.errors import UserError


def write(path: Path, content: str = "content", schema: str = "run") -> Path:
    with drafting(path, schema) as draft:
        (draft / "sub").mkdir()
        (draft / "sub" / "a.txt").write_text(content)
        (draft / "b.bin").write_bytes(b"\0" * 100)
        draft.rows(lines=3)
    return path


def test_round_trip(tmp_path: Path) -> None:
    manifest = read_manifest(write(tmp_path / "run"), "run")
    assert (manifest.schema, manifest.version, manifest.rows) == ("run", VERSIONS["run"], {"lines": 3})
    assert set(manifest.files) == {"b.bin", "sub/a.txt"} and manifest.files["b.bin"]["bytes"] == 100
    assert verify(tmp_path / "run") == manifest


def test_digest_is_of_the_contents(tmp_path: Path) -> None:
    digests = [read_manifest(write(tmp_path / n, c)).digest for n, c in (("1", "x"), ("2", "x"), ("3", "y"))]
    assert digests[0] == digests[1] != digests[2]
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 2, "b": 1})


def test_a_failed_writer_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), drafting(tmp_path / "run", "run") as draft:
        (draft / "half.bin").write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_failed_writer_leaves_the_old_artifact(tmp_path: Path) -> None:
    before = read_manifest(write(tmp_path / "run"))
    with pytest.raises(ValueError, match="no"), drafting(tmp_path / "run", "run"):
        raise ValueError("no")
    assert verify(tmp_path / "run") == before


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
    other.discard()
    write(tmp_path / "run")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_writing_again_replaces(tmp_path: Path) -> None:
    write(tmp_path / "run", "old")
    write(tmp_path / "run", "new")
    assert (tmp_path / "run" / "sub" / "a.txt").read_text() == "new"


def corrupt_manifest(path: Path) -> None:
    (path / MANIFEST).write_text('{"schema": "ru')


def strange_manifest(path: Path) -> None:
    (path / MANIFEST).write_text('{"schema": "run", "version": 1, "surprise": 2}')


def binary_manifest(path: Path) -> None:
    (path / MANIFEST).write_bytes(b"\xff\xfe\x00")


def cut_file(path: Path) -> None:
    (path / "b.bin").write_bytes(b"\0" * 99)


def missing_file(path: Path) -> None:
    (path / "sub" / "a.txt").unlink()


def other_version(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps(manifest | {"version": 99}))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (corrupt_manifest, "is corrupt"),
        (strange_manifest, "surprise"),
        (binary_manifest, "is corrupt"),
        (cut_file, "99 bytes where 100 bytes belong"),
        (missing_file, "a.txt is corrupt: missing"),
        (other_version, "has version 99"),
    ],
)
def test_damage_is_one_line(tmp_path: Path, damage: Callable[[Path], None], says: str) -> None:
    damage(write(tmp_path / "run"))
    with pytest.raises(UserError, match=says) as caught:
        read_manifest(tmp_path / "run", "run")
    assert "\n" not in str(caught.value) and str(tmp_path / "run") in str(caught.value)


def test_other_schema_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds a 'run' artifact where 'dataset' is needed"):
        read_manifest(write(tmp_path / "run"), "dataset")


def test_a_file_or_nothing_is_no_artifact(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("file", "missing"):
        with pytest.raises(UserError, match="not a complete artifact"):
            read_manifest(tmp_path / name)


def test_changed_content_of_the_same_size_is_found_by_verify_alone(tmp_path: Path) -> None:
    write(tmp_path / "run")
    (tmp_path / "run" / "b.bin").write_bytes(b"\1" * 100)
    read_manifest(tmp_path / "run")
    with pytest.raises(UserError, match=r"b\.bin is corrupt: its digest differs"):
        verify(tmp_path / "run")


def test_folder_digest_sees_names_and_contents(tmp_path: Path) -> None:
    for name, file, text in (("1", "a", "x"), ("2", "a", "x"), ("3", "b", "x"), ("4", "a", "y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    digests = [folder_digest(tmp_path / name) for name in "1234"]
    assert digests[0] == digests[1] and len(set(digests)) == 3
