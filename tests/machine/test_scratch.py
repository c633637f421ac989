"""Arrays in unlinked files."""

import errno
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gnn_encoder.machine.scratch import scratch, scratch_texts


def test_scratch_uses_the_folder_that_is_named(tmp_path: Path) -> None:
    assert scratch(3, folder=tmp_path).shape == (3,) and not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        scratch(3, folder=tmp_path / "none")


def test_scratch_holds_what_is_written_and_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    array = scratch(3, 4)
    array[:] = np.arange(12).reshape(3, 4)
    assert array.sum() == 66 and scratch(0, 4).shape == (0, 4)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        scratch(3, 4)


def test_texts_are_those_of_all_batches_in_order() -> None:
    batches = [pa.array(["a river", "", "ça"]), pa.array(["left out", "z", "last"]).slice(1), pa.array([], pa.string())]
    texts = scratch_texts(batches)
    assert texts.to_pylist() == ["a river", "", "ça", "z", "last"]
    assert texts.take(pa.array([4, 1, 2])).to_pylist() == ["last", "", "ça"]
    assert scratch_texts([]).to_pylist() == [] and scratch_texts([pa.array([""])]).to_pylist() == [""]
