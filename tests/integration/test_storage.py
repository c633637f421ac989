"""Folders in a real object store: whole or not at all, whatever is killed in between."""

import datetime
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from integration.ceph import SECRET_KEY, Ceph
from integration.stored import contents, copying, folder_of, keys, unfinished, wait_until
from small_disk import small_disk

from gnn_encoder.artifacts import Dataset, drafting
from gnn_encoder.errors import UserError
from gnn_encoder.storage import CACHE, local_folder
from gnn_encoder.storage.s3 import Address, client
from gnn_encoder.storage.transfer import (
    FETCHING,
    INDEX,
    PART,
    get_folder,
    has_former_versions,
    list_folder,
    put_folder,
    remove_folder,
)  # fmt: skip

# The last module: taking down the servers counts for its last test.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_there_and_back(bucket: str, tmp_path: Path) -> None:
    source, sent, fetched = folder_of(tmp_path / "source"), [], []
    put_folder(source, f"{bucket}/a/b", sent.append)
    assert keys(f"{bucket}/a/b") == [INDEX, "empty", "large.bin", "sub/small.txt"]
    get_folder(f"{bucket}/a/b", tmp_path / "target", fetched.append)
    assert contents(tmp_path / "target") == contents(source)
    assert sum(sent) == sum(fetched) == sum(file.bytes for file in list_folder(f"{bucket}/a/b").values())
    (tmp_path / "target" / "sub" / "small.txt").write_text("other")
    fetched.clear()
    get_folder(f"{bucket}/a/b", tmp_path / "target", fetched.append)
    assert contents(tmp_path / "target") == contents(source)
    assert fetched == [5], "what is there already is not fetched again"


def test_a_bucket_says_whether_it_keeps_what_was_deleted(bucket: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "folder", 0)
    for kept in (False, True):
        if kept:
            versioning = {"Status": "Enabled"}
            client().put_bucket_versioning(Bucket=Address.parse(bucket).bucket, VersioningConfiguration=versioning)
        put_folder(folder, f"{bucket}/a")
        remove_folder(f"{bucket}/a")
        assert not keys(bucket) and has_former_versions(f"{bucket}/a") == kept


def test_another_folder_at_the_same_address_leaves_nothing_of_the_first(bucket: str, tmp_path: Path) -> None:
    put_folder(folder_of(tmp_path / "first", 1), f"{bucket}/a")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "only.txt").write_text("only")
    put_folder(tmp_path / "second", f"{bucket}/a")
    assert keys(f"{bucket}/a") == [INDEX, "only.txt"]
    put_folder(tmp_path / "second", f"{bucket}/ab")  # a neighbour, not below it
    put_folder(tmp_path / "second", f"{bucket}/a")
    assert keys(f"{bucket}/ab") == [INDEX, "only.txt"]


def test_nothing_else_is_touched(bucket: str, tmp_path: Path) -> None:
    source, name = folder_of(tmp_path / "source", 1), Address.parse(bucket).bucket
    client().put_object(Bucket=name, Key="theirs/data.txt", Body=b"theirs")
    (tmp_path / "empty").mkdir()
    for folder, address, words in (
        (source, f"{bucket}/theirs", r"holds data\.txt, which was not sent from here"),
        (source, bucket, "is a whole bucket"),
        (tmp_path / "empty", f"{bucket}/a", "holds no files"),
    ):
        with pytest.raises(UserError, match=words):
            put_folder(folder, address)
    assert keys(bucket) == ["theirs/data.txt"]
    put_folder(source, f"{bucket}/a")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds mine\.txt, which is not at"):
        get_folder(f"{bucket}/a", tmp_path / "target")
    assert contents(tmp_path / "target") == {"mine.txt": b"mine"}


def test_processes_that_fetch_at_once_get_one_whole_folder(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_folder(folder_of(tmp_path / "source", 40), f"{bucket}/a")
    code = f"from gnn_encoder.storage import local_folder; print(local_folder({bucket + '/a'!r}))"
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    readers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)]
    (folder,) = {Path(reader.communicate()[0].decode().strip()) for reader in readers}
    assert [reader.returncode for reader in readers] == [0, 0, 0]
    assert contents(folder) == contents(tmp_path / "source")


def test_a_corrupt_object_is_refused_and_leaves_no_file(bucket: str, tmp_path: Path) -> None:
    put_folder(folder_of(tmp_path / "source", 20), f"{bucket}/a")
    name = Address.parse(bucket).bucket
    client().put_object(Bucket=name, Key="a/large.bin", Body=os.urandom(20 * 2**20 + 1))
    with pytest.raises(UserError, match=r"a/large\.bin is corrupt"):
        get_folder(f"{bucket}/a", tmp_path / "target")
    client().put_object(Bucket=name, Key="a/large.bin", Body=b"short")
    with pytest.raises(UserError, match=r"a/large\.bin is corrupt"):
        get_folder(f"{bucket}/a", tmp_path / "target")
    assert not (tmp_path / "target" / "large.bin").exists()


def test_a_killed_sender_leaves_no_folder_and_the_next_cleans_up(bucket: str, tmp_path: Path) -> None:
    source = folder_of(tmp_path / "source", 400)
    sender = copying(str(source), f"{bucket}/a")
    wait_until(lambda: unfinished(bucket))
    sender.send_signal(signal.SIGKILL)
    sender.wait()
    assert unfinished(bucket) == ["a/large.bin"]
    for indexed in (True, False):  # also where an index is not asked for
        with pytest.raises(UserError, match="was being sent and is not complete"):
            get_folder(f"{bucket}/a", tmp_path / "target", indexed=indexed)
    put_folder(source, f"{bucket}/a")
    assert unfinished(bucket) == []
    get_folder(f"{bucket}/a", tmp_path / "target")
    assert contents(tmp_path / "target") == contents(source)


def test_a_killed_reader_goes_on(bucket: str, tmp_path: Path) -> None:
    source, target, fetched = folder_of(tmp_path / "source", 400), tmp_path / "target", []
    (source / "a.bin").write_bytes(os.urandom(2 * PART))  # whole before the large one is
    put_folder(source, f"{bucket}/a")
    reader = copying(f"{bucket}/a", str(target))
    wait_until(lambda: (target / "a.bin").is_file() and list(target.glob(f"{FETCHING}/large.bin*")))
    reader.send_signal(signal.SIGKILL)
    reader.wait()
    assert not (target / "large.bin").exists()
    get_folder(f"{bucket}/a", target, fetched.append)
    assert contents(target) == contents(source), "and nothing of the killed one is left"
    assert sum(fetched) <= 400 * 2**20 + 1 + 5, "what was whole is not fetched again"


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("megabytes", [40, 0])
def test_a_folder_that_is_replaced_while_it_is_read_is_never_mixed(
    bucket: str, tmp_path: Path, indexed: bool, megabytes: int
) -> None:
    first, second, target = folder_of(tmp_path / "1", megabytes), folder_of(tmp_path / "2", megabytes), tmp_path / "t"
    for source in (first, second):
        for number in range(30):
            (source / f"{number}.bin").write_bytes(os.urandom(1000))

    def send(source: Path) -> None:
        if indexed:
            put_folder(source, f"{bucket}/a")
        else:  # by hand, as a user's other tools do
            for path in (path for path in source.rglob("*") if path.is_file()):
                client().upload_file(str(path), Address.parse(bucket).bucket, f"a/{path.relative_to(source)}")

    send(first)
    turn, replaced = threading.Lock(), threading.Event()

    def replace(_: int) -> None:
        with turn:  # with the first bytes that arrive; the other requests under way wait meanwhile
            if not replaced.is_set():
                send(second)
                replaced.set()

    with pytest.raises(UserError, match=f"{bucket}/a was replaced while it was read"):
        get_folder(f"{bucket}/a", target, replace, indexed=indexed)
    if indexed:
        assert contents(target).items() <= contents(first).items(), "whatever arrived is of one version"
    get_folder(f"{bucket}/a", tmp_path / "again", indexed=indexed)
    assert contents(tmp_path / "again") == contents(second)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_the_store_is_killed_in_between_and_comes_back(ceph: Ceph, bucket: str, tmp_path: Path, direction: str) -> None:
    source, moved, failures = folder_of(tmp_path / "source", 300), [], []
    if direction == "down":
        put_folder(source, f"{bucket}/a")

    def move() -> None:
        try:
            if direction == "up":
                put_folder(source, f"{bucket}/a", moved.append)
            else:
                get_folder(f"{bucket}/a", tmp_path / "target", moved.append)
        except UserError as error:
            failures.append(error)

    mover = threading.Thread(target=move)
    mover.start()
    wait_until(lambda: sum(moved) > 2 * PART)
    ceph.kill()
    assert mover.is_alive(), "it was over before the store was killed"
    time.sleep(2)
    ceph.start()
    mover.join(200)
    assert failures == []
    if direction == "up":
        assert unfinished(bucket) == []
        get_folder(f"{bucket}/a", tmp_path / "target")
    assert contents(tmp_path / "target") == contents(source)


def test_what_a_store_refuses_is_told_in_one_line(
    ceph: Ceph, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, name = folder_of(tmp_path / "source", 20), Address.parse(bucket).bucket

    def refusal(address: str = bucket) -> str:
        client.cache_clear()
        with pytest.raises(UserError) as caught:
            put_folder(source, f"{address}/a")
        assert "\n" not in str(caught.value) and SECRET_KEY not in str(caught.value)
        return str(caught.value)

    assert "no such bucket" in refusal("s3://no-such-bucket")
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        assert "refuses the credentials" in refusal()
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        assert "does not know the access key" in refusal()
    with monkeypatch.context() as patch:
        patch.setattr("gnn_encoder.storage.s3.ATTEMPTS", 2)
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        assert "http://127.0.0.1:9 cannot be reached" in refusal()
    with monkeypatch.context() as patch:
        tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
        patch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: tomorrow.replace(tzinfo=None))
        assert "clock differs" in refusal()
    quota = ("--quota-scope=bucket", f"--bucket={name}")
    ceph.run("radosgw-admin", "quota", "set", *quota, "--max-size=1048576")
    ceph.run("radosgw-admin", "quota", "enable", *quota)
    assert "is full" in refusal()
    client.cache_clear()


def test_a_full_cache_names_itself_and_goes_on_when_there_is_room(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, many = folder_of(tmp_path / "large", 20), tmp_path / "many"
    many.mkdir()
    for number in range(200):
        (many / f"{number}.txt").write_bytes(os.urandom(2**16))
    for source in (large, many):
        put_folder(source, f"{bucket}/{source.name}")
        with small_disk(tmp_path / f"disk of {source.name}") as disk:
            monkeypatch.setenv(CACHE, str(disk.path / "cache"))
            with pytest.raises(UserError, match=f"No space left on device: {disk.path}/cache/.*; free space") as caught:
                local_folder(f"{bucket}/{source.name}")
            assert "\n" not in str(caught.value)
            assert not list(disk.path.glob("cache/[!.]*")), "no reader takes half a folder for a whole one"
            disk.grow()
            assert contents(local_folder(f"{bucket}/{source.name}")) == contents(source)
            assert not list(disk.path.glob(f"cache/**/{FETCHING}"))


def test_a_data_set_and_a_bundle_are_read_from_the_store(
    bucket: str, tmp_path: Path, tiny_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from beir_folder import check
    from trained_root import write_beir

    from gnn_encoder.settings.foundation import Ingest

    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    beir = write_beir(tiny_dataset, tmp_path / "beir")
    for path in beir.rglob("*.*"):  # by hand, as a user's other tools do: no index
        client().upload_file(str(path), Address.parse(bucket).bucket, f"data/{path.relative_to(beir)}")
    report = check(Ingest(dataset=f"{bucket}/data"))
    assert (report.passages, report.queries["train"], report.problems) == (100, 60, [])
    with pytest.raises(UserError, match="has no index"):
        local_folder(f"{bucket}/data")
    with drafting(tmp_path / "bundle", "bundle") as draft:
        (draft / "weights").write_text("weights")
    put_folder(tmp_path / "bundle", f"{bucket}/bundle")
    there = local_folder(f"{bucket}/bundle")
    assert contents(there) == contents(tmp_path / "bundle")
    assert local_folder(f"{bucket}/bundle") == there
    (tmp_path / "bundle" / "weights").write_text("others")
    put_folder(tmp_path / "bundle", f"{bucket}/bundle")
    assert local_folder(f"{bucket}/bundle") != there
