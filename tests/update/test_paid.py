"""Vectors that were paid for are kept when some are forgotten."""

from pathlib import Path

import numpy as np
import pytest

from gnn_encoder.artifacts.digests import text_digests
from gnn_encoder.update.paid import Paid
from gnn_encoder.update.paid import forget as forget_paid


def test_a_kill_loses_no_paid_vector_of_another_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests, vectors = text_digests(map(str, range(20))), np.arange(1, 61, dtype=np.float32).reshape(20, 3)
    Paid(tmp_path, 3).add(digests, vectors)
    with (tmp_path / "vectors").open("ab") as file:
        file.write(bytes(12) * 7 + b"the answer that another kill cut")

    class Killed(np.memmap):
        def flush(self) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "memmap", Killed)
        with pytest.raises(KeyboardInterrupt):
            forget_paid(tmp_path, digests[4:6])
    assert Paid(tmp_path, 3).find(digests)[0].all()
    assert forget_paid(tmp_path, digests[4:6]) and not forget_paid(tmp_path, digests[4:6])
    assert not np.isin(vectors[4:6], np.fromfile(tmp_path / "vectors", np.float32)).any()
    stays = np.isin(np.arange(20), [4, 5], invert=True)
    is_paid, theirs = Paid(tmp_path, 3).find(digests)
    np.testing.assert_array_equal(is_paid, stays)
    np.testing.assert_array_equal(theirs, vectors[stays])
