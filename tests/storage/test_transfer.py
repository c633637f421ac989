"""Folders in a store, without a server of its own: the rest is in tests/integration."""

import json
from pathlib import Path

import pytest
from slow_store import slow_store

from gnn_encoder.artifacts.folder import sha256
from gnn_encoder.errors import Missing, UserError
from gnn_encoder.storage.transfer import INDEX, Stored, file_at, get_file, list_folder, put_folder

URI = "s3://bucket/data"


def test_a_damaged_marker_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "words.txt").write_text("a river")
    with slow_store(monkeypatch) as store:
        put_folder(tmp_path, URI)
        (key,) = (key for key in store.objects if key.endswith(INDEX))
        marker = json.loads(store.objects[key])
        del marker["files"]["words.txt"]["bytes"]
        store.objects[key] = json.dumps(marker).encode()
        with pytest.raises(UserError, match="is corrupt: delete it"):
            list_folder(URI)


def test_one_file_is_fetched_and_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_store(monkeypatch) as store:
        store.objects["runs/a.trec"] = b"old"
        listing = {"a.trec": file_at("s3://bucket/runs/a.trec")}
        get_file("s3://bucket/runs/a.trec", listing, tmp_path / "first")
        assert (tmp_path / "first" / "a.trec").read_bytes() == b"old"
        store.objects["runs/a.trec"] = b"new"  # of the same size
        with pytest.raises(UserError, match="was replaced while it was read"):
            get_file("s3://bucket/runs/a.trec", listing, tmp_path / "second")
        with pytest.raises(Missing, match="does not exist"):
            file_at("s3://bucket/runs/b.trec")


def test_a_file_of_the_same_size_with_other_content_does_not_match(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes(b"old")
    stored = Stored(3, sha256(file))
    assert stored.matches(file) and not Stored(4, stored.sha256).matches(file)
    file.write_bytes(b"new")
    assert not stored.matches(file) and Stored(3).matches(file), "without a marker the size has to do"
