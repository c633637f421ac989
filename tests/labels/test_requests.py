"""Labels that a user asks for are checked against the data."""

from pathlib import Path

import numpy as np
import pytest
from bundles import fill_bundle

from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, drafting
from gnn_encoder.errors import UserError
from gnn_encoder.labels.requests import Known, Wanted
from gnn_encoder.models.dual_encoder import TextEncoder


def test_a_label_that_contradicts_the_data_is_refused_and_says_so(tmp_path: Path, tiny_backbone: Path) -> None:
    with drafting(tmp_path / "data", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p0", "p1", "p2"], [""] * 3, ["ant", "bee", "cat"])
        writer.queries(["q0"], ["an insect"], ["train"], [[]])
        writer.qrels(["q0", "q0"], ["p0", "p2"], [1, 0], [0, 0], [0, 2])
        writer.close()
    data, encoder = Dataset(tmp_path / "data"), TextEncoder.from_backbone(str(tiny_backbone), "mean", max_length=8)
    with drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, np.zeros((3, encoder.width), np.float32), data, encoder.save)
    known = Known(data, Bundle.read(tmp_path / "bundle"))
    for query in ("an insect", "An Insect "):
        with pytest.raises(UserError, match="'p2': the data say that the passage is not relevant to this query"):
            known.checked([Wanted(query, "p2")])
        with pytest.raises(UserError, match="'p0': this label exists already"):
            known.checked([Wanted(query, "p0")])
        assert [label.query_id for label in known.checked([Wanted(query, "p1")])] == ["q0"]
