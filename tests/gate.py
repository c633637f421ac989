"""The promotion gate before a real registry, and two runs that reach it at once."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gate_inputs import write_inputs

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.promotion.registry import CHAMPION, PREVIOUS, Registry, open_registry
from gnn_encoder.settings import Promote
from gnn_encoder.settings.arguments import StepArguments
from gnn_encoder.steps.promote import promote

# Both bundles of a pair have the same model: what the clock says of them on a busy machine is not what is tried here.
CALM = Promote(model_name="tiny", largest_latency_ratio=100.0)
RACE = """
import sys
from pathlib import Path
from gnn_encoder.steps.promote import promote
folder = Path(sys.argv[1])
promote(sys.argv[2], dataset=sys.argv[3], report=folder / "report", bundle=folder / "bundle",
        decision=folder / "decision")
"""


class Gate:
    """A store and a folder of bundles."""

    def __init__(self, folder: Path, dataset: Dataset, backbone: Path, uri: str) -> None:
        self.folder, self._dataset, self._backbone, self.uri = folder, dataset, backbone, uri

    @property
    def models(self) -> Registry:
        return open_registry(self.uri, "tiny")

    def inputs(self, name: str, found: int, **more: Any) -> dict[str, Path]:
        return write_inputs(self.folder / name, self._dataset, self._backbone, found, **more)

    def decided(self, name: str, found: int, settings: Promote | str = CALM, **more: Any) -> dict[str, Any]:
        promote(settings, decision=self.folder / name / "decision", **self.inputs(name, found, **more))
        return Decision.read(self.folder / name / "decision").facts

    def aliases(self) -> dict[str, str]:
        return {alias: version.number for version in self.models.versions() for alias in version.aliases}

    def race(self) -> None:
        """Two processes compare with the same champion: the one that comes second meets the winner."""
        self.decided("old", 4)
        call = StepArguments(settings=CALM.model_dump()).model_dump_json()
        models, processes = self.models, []
        with models.turn():  # held until both have compared with the old champion
            mine = models._first_ticket()
            for name, noise in (("a", 0.0), ("b", 0.01)):
                self.inputs(name, 16, noise=noise)
                command = [sys.executable, "-c", RACE, str(self.folder / name), call, str(self._dataset.path)]
                processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)))
            deadline = time.monotonic() + 200
            while waiting(models) < 2:
                assert time.monotonic() < deadline and all(process.poll() is None for process in processes)
                time.sleep(0.1)
            assert models._first_ticket() == mine
            assert self.aliases() == {CHAMPION: "1"}
        for process in processes:
            _, complaints = process.communicate(timeout=200)
            assert process.returncode == 0, complaints
        won, lost = sorted(
            (Decision.read(self.folder / name / "decision").facts for name in ("a", "b")),
            key=lambda facts: int(facts["version"]),
        )
        assert (won["decision"], won["champion_before"], won["comparison"]["version"]) == ("promote", "1", "1")
        assert (lost["decision"], lost["champion_before"], lost["comparison"]["version"]) == ("keep", "2", "2")
        assert "+0.0000 (p 1) against version 2" in lost["reason"]
        assert self.aliases() == {CHAMPION: "2", PREVIOUS: "1"}
        # The control: out of a race, the bundle that lost does beat the old champion.
        models.promote("1")
        loser = "a" if lost["bundle"].endswith("a/bundle") else "b"
        assert self.decided(loser, 16, noise=0.0 if loser == "a" else 0.01)["decision"] == "promote"


def waiting(models: Registry) -> int:
    held = models._client.search_model_versions("name = 'tiny.turns'")
    return len(held) - 1
