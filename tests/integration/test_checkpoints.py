"""A training whose checkpoints are in the object store: it goes on, wherever it is started again."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from integration import training
from integration.ceph import Ceph, wait_for
from safetensors.torch import load_file

from gnn_encoder.storage.checkpoint_store import DIGITS, STATES
from gnn_encoder.storage.s3 import Address, client
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.context import CHECKPOINTS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
CALL = "test-key"


def start(folder: Path, checkpoints: str) -> subprocess.Popen[bytes]:
    """A training on a machine of its own: whatever it leaves on its disk is not there for the next."""
    folder.mkdir()
    source = Path(mlflow_runs.__file__).parents[2]
    paths = os.pathsep.join(map(str, (source, Path(__file__).parents[1])))
    environment = {**os.environ, CHECKPOINTS: checkpoints, "TMPDIR": str(folder), "PYTHONPATH": paths}
    environment.pop("MLFLOW_TRACKING_URI", None)
    return subprocess.Popen([sys.executable, training.__file__, str(folder / "weights")], env=environment)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start(folder / "machine", str(folder / "checkpoints")).wait() == 0
    return load_file(folder / "machine" / "weights")


def same_weights(folder: Path, expected: Mapping[str, torch.Tensor]) -> int:
    """Compare what a training ended with; the step that it began at."""
    weights = load_file(folder / "weights")
    assert all(torch.equal(weights[name], expected[name]) for name in expected if name != "began")
    return int(weights["began"])


def complete(bucket: str) -> list[str]:
    states = f"runs/{CALL}/{STATES}"
    return sorted(key.removeprefix(states) for key in left(bucket) if key.startswith(states))


def left(bucket: str) -> list[str]:
    address = Address.parse(bucket)
    return [item["Key"] for item in client().list_objects_v2(Bucket=address.bucket).get("Contents", [])]


def test_another_machine_goes_on(bucket: str, tmp_path: Path, undisturbed: Mapping[str, torch.Tensor]) -> None:
    first = start(tmp_path / "first", f"{bucket}/runs")
    wait_for(lambda: complete(bucket)[-1:] >= ["000000000003"], "the third checkpoint")
    first.kill()
    first.wait()
    kept = complete(bucket)
    assert 1 <= len(kept) <= 2, "its forerunners go"
    assert start(tmp_path / "second", f"{bucket}/runs").wait() == 0
    assert same_weights(tmp_path / "second", undisturbed) == int(kept[-1][:DIGITS]) >= 3
    assert left(bucket) == [], "what is finished leaves no checkpoints"


def test_the_store_is_killed_in_a_checkpoint(
    ceph: Ceph, bucket: str, tmp_path: Path, undisturbed: Mapping[str, torch.Tensor]
) -> None:
    running = start(tmp_path / "machine", f"{bucket}/runs")
    wait_for(lambda: complete(bucket), "the first checkpoint")
    ceph.kill()
    time.sleep(3)
    assert running.poll() is None, "it was over before the store was killed"
    ceph.start()
    assert running.wait() == 0, "a training does not end because the store is away"
    assert same_weights(tmp_path / "machine", undisturbed) == 0
    # What was under way when the store went is no checkpoint to it; a machine that begins now goes on from a whole one.
    whole = complete(bucket)
    assert start(tmp_path / "second", f"{bucket}/runs").wait() == 0
    assert same_weights(tmp_path / "second", undisturbed) == (int(whole[-1][:DIGITS]) if whole else 0)
    assert left(bucket) == []
