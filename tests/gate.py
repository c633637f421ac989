"""The promotion gate before a real registry, and two runs that reach it at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from gate_inputs import write_inputs

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.promotion.registry import CHAMPION, PREVIOUS, Registry, open_registry
from gnn_encoder.settings.outcome import Promote
from gnn_encoder.steps.promote import promote

# Both bundles of a pair have the same model: what the clock says of them on a busy machine is not what is tried here.
CALM = Promote(model_name="tiny", largest_latency_ratio=100.0)
RIVAL = """
import os, signal, sys
from pathlib import Path
from mlflow.tracking import MlflowClient
from gnn_encoder.steps.promote import promote
folder, method, word = Path(sys.argv[1]), sys.argv[4], sys.argv[5]
call = getattr(MlflowClient, method)

def stop_first(client, *arguments, **more):
    if word in arguments:
        setattr(MlflowClient, method, call)
        os.kill(os.getpid(), signal.SIGSTOP)
    return call(client, *arguments, **more)

setattr(MlflowClient, method, stop_first)
inputs = {name: folder / name for name in ("evaluation", "recommendation", "graph", "bundle")}
promote(sys.argv[2], dataset=sys.argv[3], **inputs, decision=folder / "decision")
"""


class Rival:
    """A process at the gate that stops before its first request of a kind, as if its machine stood still."""

    def __init__(self, folder: Path, dataset: Dataset, method: str, word: str) -> None:
        """Stops before it calls a `method` of MLflow's client with `word` among the arguments."""
        self._folder = folder
        call = StepArguments(settings=CALM.model_dump()).model_dump_json()
        command = [sys.executable, "-c", RIVAL, str(folder), call, str(dataset.path), method, word]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))

    def wait_for_stop(self) -> None:
        state = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert state and state.si_code == os.CLD_STOPPED, self._process.communicate()[1]

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def facts(self) -> dict[str, Any]:
        """What it decided, once it has ended."""
        _, complaints = self._process.communicate(timeout=200)
        assert self._process.returncode == 0, complaints
        return Decision.read(self._folder / "decision").facts


class Gate:
    """A store and a folder of bundles."""

    def __init__(self, folder: Path, dataset: Dataset, backbone: Path, uri: str) -> None:
        self.folder, self.dataset, self.backbone, self.uri = folder, dataset, backbone, uri

    @property
    def models(self) -> Registry:
        return open_registry(self.uri, "tiny")

    def inputs(self, name: str, right: int, **more: Any) -> dict[str, Path]:
        return write_inputs(self.folder / name, self.dataset, self.backbone, right, **more)

    def decided(self, name: str, right: int, settings: Promote | str = CALM, **more: Any) -> dict[str, Any]:
        promote(settings, decision=self.folder / name / "decision", **self.inputs(name, right, **more))
        return Decision.read(self.folder / name / "decision").facts

    def aliases(self) -> dict[str, str]:
        return {alias: version.number for version in self.models.versions() for alias in version.aliases}

    def rival(self, name: str, right: int, method: str, word: str, **more: Any) -> Rival:
        self.inputs(name, right, **more)
        return Rival(self.folder / name, self.dataset, method, word)

    def race(self) -> None:
        """Two processes compare with the same champion: one wins, and the other is compared with the winner."""
        self.decided("old", 4)
        noises = {"a": 0.0, "b": 0.01}
        rivals = [
            self.rival(name, 16, "create_model_version", "tiny.moves", noise=noise) for name, noise in noises.items()
        ]
        for rival in rivals:  # until both have compared with the old champion and registered
            rival.wait_for_stop()
        assert self.aliases() == {CHAMPION: "1"} and len(self.models.versions()) == 3
        for rival in rivals:
            rival.go_on()
        lost, won = sorted((rival.facts() for rival in rivals), key=lambda facts: str(facts["decision"]))
        assert (won["decision"], won["champion_before"], won["comparison"]["version"]) == ("promote", "1", "1")
        assert (lost["decision"], lost["champion_before"]) == ("keep", won["version"])
        assert f"+0.0000 (p 1) against version {won['version']}" in lost["reason"]
        assert self.aliases() == {CHAMPION: won["version"], PREVIOUS: "1"}
        assert {version.number for version in self.models.versions()} == {"1", won["version"], lost["version"]}
        # The control: out of a race, the bundle that lost does beat the old champion.
        self.models.promote("1")
        loser = "a" if lost["bundle"].endswith("a/bundle") else "b"
        assert self.decided(loser, 16, noise=noises[loser])["decision"] == "promote"
