"""The settings with which an update reads a run's data and makes its BM25 index again."""

from pathlib import Path

import numpy as np
import pytest
from bundles import fill_bundle

from gnn_encoder.artifacts import Bundle, Dataset, drafting
from gnn_encoder.artifacts.history import Record, write_history
from gnn_encoder.engines.pipelines import _bm25_settings, _data_settings
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.settings.presets import parse_settings
from gnn_encoder.settings.written import SelectQueries, WriteQueries


@pytest.mark.parametrize("indexed", [True, False])
def test_bm25_is_set_as_in_the_run(indexed: bool, tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path) -> None:
    kind = IndexBm25(k1=0.9, language="en", fields="separate")
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
    with drafting(tmp_path / "bundle", "bundle") as draft:
        index = Bm25.build(tiny_dataset.passages, kind) if indexed else None
        fill_bundle(draft, np.ones((100, encoder.width), np.float32), tiny_dataset, encoder.save, bm25=index)
        write_history(draft.path, {"index_bm25": Record(kind.model_dump())})
    assert IndexBm25(**_bm25_settings(Bundle.read(tmp_path / "bundle"))) == kind


@pytest.mark.parametrize("has_history", [True, False])
def test_data_are_read_as_in_the_run(has_history: bool, tmp_path: Path) -> None:
    ingest = Ingest(dataset="data", dev_fraction=0.2, chosen_on_dev=("train_gnn.keep",), needs="passages")
    written = {"write_queries": WriteQueries(generator="titles"), "select_queries": SelectQueries(max_train=7)}
    with drafting(tmp_path / "dataset", "dataset") as draft:
        draft.manifest.settings = ingest.model_dump(mode="json")
        steps = {"ingest": ingest, **written}
        if has_history:
            history = {step: Record(settings.model_dump(mode="json")) for step, settings in steps.items()}
            write_history(draft.path, history)
    settings = parse_settings(_data_settings(tmp_path / "dataset"))
    assert settings.ingest == ingest.model_copy(update={"chosen_on_dev": (), "needs": "labels"})
    assert (settings.select_queries.max_train == 7) == (settings.write_queries.generator == "titles") == has_history
