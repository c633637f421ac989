"""Tasks that share the encoding of the graph's nodes: together the bits of one task, and an update does its part."""

from pathlib import Path

import numpy as np
import pytest
from tiny_graph import encode, write_models

from gnn_encoder.artifacts import Dataset, Encoding, drafting, read_manifest
from gnn_encoder.artifacts.arrays import JoinedRows
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.models.gnn import GnnEncoder

SHARDS = 3


@pytest.fixture(scope="module", params=[True, False], ids=["M_de's passages", "the trained encoder's passages"])
def models(request: pytest.FixtureRequest, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Models whose queries read passages of either kind in eq. 6."""
    folder = tmp_path_factory.mktemp("models")
    models = write_models(folder, tiny_backbone)
    joint = GnnEncoder.load(models["gnn_encoder"])
    joint.gnn.config = joint.gnn.config.model_copy(update={"cached_passages": request.param})
    with drafting(folder / "trained", "model") as draft:
        joint.save(draft.path)
    return models | {"gnn_encoder": folder / "trained"}


@pytest.mark.slow
def test_tasks_encode_the_bits_of_one_task(models: dict, tiny_dataset: Dataset, tmp_path: Path) -> None:
    one = encode(tiny_dataset.path, models, tmp_path / "one")
    several = encode(tiny_dataset.path, models, tmp_path / "several", shards=SHARDS)
    whole, joined = (Encoding.read(folder / "encoding") for folder in (one, several))
    assert isinstance(whole.passages, np.memmap) and isinstance(joined.passages, JoinedRows)
    for name in ("passages", "queries"):
        np.testing.assert_array_equal(np.asarray(getattr(joined, name)), getattr(whole, name))
        np.testing.assert_array_equal(joined.contents.digests[name], whole.contents.digests[name])
    sizes = [len(Encoding.read(several / f"{i} of {SHARDS}").passages) for i in range(SHARDS)]
    assert sizes == [33, 33, 34] and joined.contents.models == whole.contents.models
    assert read_manifest(one / "bundle").digest == read_manifest(several / "bundle").digest
    records = [read_history(folder / "bundle")["encode_nodes"].metrics for folder in (one, several)]
    assert [(record["passages"], record["encoded"]) for record in records] == [(100, 100)] * 2
    assert read_manifest(several / "encoding").rows == {"passages": 100, "queries": 60}

    # The next day nothing has changed, and another number of tasks finds everything in the parts.
    after = encode(tiny_dataset.path, models, tmp_path / "after", several, shards=2)
    history = read_history(after / "bundle")
    assert history["encode_nodes"].metrics["encoded"] == history["encode_corpus"].metrics["propagated"] == 0
    assert read_manifest(after / "bundle").digest == read_manifest(one / "bundle").digest
