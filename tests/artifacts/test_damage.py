"""A reader says in one line what is wrong with an artifact, and hashes each file once."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from manifests import write_artifact, write_manifest

from gnn_encoder.artifacts import folder as module
from gnn_encoder.artifacts.folder import (
    CLOCK_TICK,
    MANIFEST,
    Manifest,
    read_manifest,
    sha256,
)
from gnn_encoder.errors import UserError


def strange_manifest(path: Path) -> None:
    (path / MANIFEST).write_text('{"schema": "run", "version": 1, "surprise": 2}')


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
        (strange_manifest, "surprise"),
        (cut_file, "99 bytes where 100 bytes belong"),
        (missing_file, "a.txt is corrupt: missing"),
        (other_version, "has version 99"),
    ],
)
def test_damage_is_one_line(tmp_path: Path, damage: Callable[[Path], None], says: str) -> None:
    damage(write_artifact(tmp_path / "run"))
    with pytest.raises(UserError, match=says) as caught:
        read_manifest(tmp_path / "run", "run")
    assert "\n" not in str(caught.value) and str(tmp_path / "run") in str(caught.value)


def test_other_schema_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds a 'run' artifact where 'dataset' is needed"):
        read_manifest(write_artifact(tmp_path / "run"), "dataset")


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
    folder = write_artifact(tmp_path / "run")
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
    folder = write_artifact(tmp_path / "run")
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
    write_artifact(tmp_path / "new")
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
    write_artifact(tmp_path / "run")
    module._Checked._in_memory.clear()
    hashed.clear()
    for _ in range(2):
        read_manifest(tmp_path / "run")
    assert len(hashed) == 2
    assert [p.name for p in sorted(tmp_path.iterdir())] == [".run.checked.json", "run"], "nothing half-written"


WRONG = [
    '{"schema": "ru', "\xff\xfe\x00", "[]", "null", "3", '"text"', "[" * 100_000, '{"schema": "run"}',
    '{"schema": 1, "version": 1}',
]  # fmt: skip


@pytest.mark.parametrize("content", WRONG)
def test_a_manifest_of_another_type_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=r"manifest\.json is corrupt") as caught:
        read_manifest(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*asdict(Manifest("run", 1))])
@pytest.mark.parametrize("value", [[], {}, "text", 3, None, {"b.bin": None}, {"b.bin": {"bytes": "x"}}])
def test_a_wrong_type_in_a_manifest_is_one_line(tmp_path: Path, name: str, value: object) -> None:
    write_artifact(tmp_path / "run")
    facts = json.loads((tmp_path / "run" / MANIFEST).read_text())
    (tmp_path / "run" / MANIFEST).write_text(json.dumps(facts | {name: value}))
    if facts[name] == value:
        return
    with pytest.raises(UserError) as caught:
        read_manifest(tmp_path / "run")
    assert "\n" not in str(caught.value) and str(tmp_path / "run") in str(caught.value)


@pytest.mark.slow
def test_every_flipped_bit_of_a_manifest_is_one_line_or_changes_nothing(tmp_path: Path) -> None:
    folder = write_artifact(tmp_path / "run")
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
    folder = write_artifact(tmp_path / "run")
    facts = json.loads((folder / MANIFEST).read_text())
    write_manifest(folder, facts)
    assert read_manifest(folder).digest == facts["digest"], "control"
    del facts["seal"]
    (folder / MANIFEST).write_text(json.dumps(facts))
    with pytest.raises(UserError, match="its seal is of other contents"):
        read_manifest(folder)


@pytest.mark.parametrize("field", ["files", ""])
def test_a_manifest_cannot_steer_the_terminal(tmp_path: Path, field: str) -> None:
    folder = write_artifact(tmp_path / "run")
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
    folder = write_artifact(tmp_path / "run")
    (folder / "b.bin").unlink()
    os.mkfifo(folder / "b.bin")
    with pytest.raises(UserError, match=r"b\.bin is corrupt: missing"):
        read_manifest(folder)
