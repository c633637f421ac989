"""An artifact is there whole or not at all, and a reader says in one line what is wrong with it."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from manifests import write_manifest

from gnn_encoder.artifacts import folder as module
from gnn_encoder.artifacts.folder import (
    CLOCK_TICK,
    LEAST_SHARED,
    MANIFEST,
    VERSIONS,
    Artifact,
    Draft,
    Manifest,
    digest_of,
    drafting,
    folder_digest,
    read_manifest,
    sha256,
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
    assert set(manifest.files) == {"b.bin", "sub/a.txt"} and manifest.files["b.bin"].bytes == 100
    assert read_manifest(tmp_path / "run") == manifest


def test_who_reads_the_folder_reads_its_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with drafting(tmp_path / "a", "model") as draft:
            (draft / "weights").write_text("w")
            (draft / "weights").chmod(0o600)
        (tmp_path / "a" / "weights").chmod(0o600)  # as an earlier version left it
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
    write(tmp_path / "run")
    assert [p.name for p in tmp_path.glob("[!.]*")] == ["run"] and not list(tmp_path.glob(".*partial*"))


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


def settle(folder: Path) -> None:
    """Wait until the files' change times are so old that a reader records them."""
    time.sleep(CLOCK_TICK / 1e9)
    assert all(time.time_ns() - p.stat().st_ctime_ns > CLOCK_TICK for p in folder.rglob("*"))


def flip(file: Path) -> None:
    """Change one bit and leave size and modification time as they are."""
    before, content = file.stat(), bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("file", ["b.bin", "sub/a.txt"])
def test_a_flipped_bit_is_one_line(tmp_path: Path, file: str, read_before: bool) -> None:
    folder = write(tmp_path / "run")
    settle(folder)
    if read_before:
        read_manifest(folder)
    flip(folder / file)
    with pytest.raises(UserError, match=f"{file} is corrupt: its digest differs") as caught:
        read_manifest(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    flip(folder / file)
    read_manifest(folder)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that have been hashed, in order."""
    names: list[str] = []

    def counted(path: Path) -> str:
        names.append(path.name)
        return sha256(path)

    monkeypatch.setattr(module, "sha256", counted)
    return names


RECENTLY, LONG_AGO = 10**18, -1
"""Values of `CLOCK_TICK` by which every file changed just now, or none did."""


def test_a_file_is_hashed_once_while_it_does_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[str]
) -> None:
    def read(folder: Path = tmp_path / "run") -> list[str]:
        """What another process would hash."""
        hashed.clear()
        module._Checked._in_memory.clear()
        read_manifest(folder)
        return sorted(hashed)

    monkeypatch.setattr(module, "CLOCK_TICK", RECENTLY)
    folder = write(tmp_path / "run")
    for _ in range(2):
        assert read() == ["a.txt", "b.bin"], "they may change again without another change time"
    monkeypatch.setattr(module, "CLOCK_TICK", LONG_AGO)
    assert read() == ["a.txt", "b.bin"] and read() == []
    time.sleep(0.02)
    os.utime(folder / "b.bin")
    assert read() == ["b.bin"] and read() == []
    (tmp_path / "link").symlink_to(folder)
    assert read(tmp_path / "link") == []
    (record,) = tmp_path.glob(".run.checked.json*")
    for broken in ("{", "[]", "null", '{"b.bin": 3}', "[" * 100_000):
        record.write_text(broken)
        assert read() == ["a.txt", "b.bin"]
    write(tmp_path / "new")
    assert read(tmp_path / "new") == [], "its writer has hashed the files"
    # A manifest with another digest does not profit from what is recorded.
    facts = json.loads((folder / MANIFEST).read_text())
    facts["files"]["b.bin"]["sha256"] = "0" * 64
    write_manifest(folder, facts)
    with pytest.raises(UserError, match="its digest differs"):
        read()


def test_without_a_place_for_the_record_each_process_hashes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[str]
) -> None:
    (tmp_path / ".run.checked.json").mkdir()
    monkeypatch.setattr(module, "CLOCK_TICK", LONG_AGO)
    write(tmp_path / "run")
    module._Checked._in_memory.clear()
    hashed.clear()
    for _ in range(2):
        read_manifest(tmp_path / "run")
    assert len(hashed) == 2
    assert [p.name for p in sorted(tmp_path.iterdir())] == [".run.checked.json", "run"], "nothing half-written"


WRONG = ["[]", "null", "3", '"text"', "[" * 100_000, '{"schema": "run"}', '{"schema": 1, "version": 1}']


@pytest.mark.parametrize("content", WRONG)
def test_a_manifest_of_another_type_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json is corrupt") as caught:
        read_manifest(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*asdict(Manifest("run", 1))])
@pytest.mark.parametrize("value", [[], {}, "text", 3, None, {"b.bin": None}, {"b.bin": {"bytes": "x"}}])
def test_a_wrong_type_in_a_manifest_is_one_line(tmp_path: Path, name: str, value: object) -> None:
    write(tmp_path / "run")
    facts = json.loads((tmp_path / "run" / MANIFEST).read_text())
    (tmp_path / "run" / MANIFEST).write_text(json.dumps(facts | {name: value}))
    if facts[name] == value:
        return
    with pytest.raises(UserError) as caught:
        read_manifest(tmp_path / "run")
    assert "\n" not in str(caught.value) and str(tmp_path / "run") in str(caught.value)


def test_every_flipped_bit_of_a_manifest_is_one_line_or_changes_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "run")
    before, content = read_manifest(folder), (folder / MANIFEST).read_bytes()
    noticed = 0
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (folder / MANIFEST).write_bytes(damaged)
        try:
            assert read_manifest(folder) == before, bit
        except UserError as error:
            assert "\n" not in str(error)
            noticed += 1
    # The rest are spaces that became other white space.
    assert noticed > 7 * len(content)


def test_a_manifest_without_its_seal_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "run")
    facts = json.loads((folder / MANIFEST).read_text())
    write_manifest(folder, facts)
    assert read_manifest(folder).digest == facts["digest"], "control"
    del facts["seal"]
    (folder / MANIFEST).write_text(json.dumps(facts))
    with pytest.raises(UserError, match="its seal is of other contents"):
        read_manifest(folder)


@pytest.mark.parametrize("field", ["files", ""])
def test_a_manifest_cannot_steer_the_terminal(tmp_path: Path, field: str) -> None:
    folder = write(tmp_path / "run")
    facts = json.loads((folder / MANIFEST).read_text())
    (facts[field] if field else facts)["\x1b[31mred"] = facts["files"]["b.bin"]
    write_manifest(folder, facts)
    with pytest.raises(UserError, match="red") as caught:
        read_manifest(folder)
    assert str(caught.value).isprintable()


def test_a_manifest_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(UserError, match="has no manifest"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).unlink()
    (tmp_path / MANIFEST).symlink_to("/dev/zero")
    with pytest.raises(UserError, match="has no manifest"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).unlink()
    with (tmp_path / MANIFEST).open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="more than 16,777,216 bytes"):
        read_manifest(tmp_path)


def test_a_listed_file_that_is_none_is_missing(tmp_path: Path) -> None:
    folder = write(tmp_path / "run")
    (folder / "b.bin").unlink()
    os.mkfifo(folder / "b.bin")
    with pytest.raises(UserError, match=r"b\.bin is corrupt: missing"):
        read_manifest(folder)


def test_folder_digest_sees_names_and_contents(tmp_path: Path) -> None:
    for name, file, text in (("1", "a", "x"), ("2", "a", "x"), ("3", "b", "x"), ("4", "a", "y")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    digests = [folder_digest(tmp_path / name) for name in "1234"]
    assert digests[0] == digests[1] and len(set(digests)) == 3
