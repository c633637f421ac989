"""Versions, aliases and turns, in a real MLflow store on SQLite."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gnn_encoder import registry
from gnn_encoder.errors import UserError
from gnn_encoder.registry import CHAMPION, PREVIOUS, Registry, open_registry


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"


def with_versions(uri: str, name: str, count: int) -> Registry:
    models = open_registry(uri, name)
    for i in range(1, count + 1):
        assert models.register(f"/bundles/{i}", {"digest": f"d{i}"}, {"test/R@100": i / 8}, "# A card") == str(i)
    return models


def aliases(models: Registry) -> dict[str, str]:
    return {alias: version.number for version in models.versions() for alias in version.aliases}


def test_a_version_and_what_is_known_of_it(uri: str) -> None:
    models = with_versions(uri, "retriever", 2)
    assert open_registry(uri, "another").versions() == []
    newest, first = models.versions()
    assert (newest.number, first.number, newest.aliases) == ("2", "1", ())
    assert newest.tags == {"digest": "d2", "bundle": "/bundles/2", "metric.test/R_at_100": "0.25"}
    assert newest.card == "# A card" and abs(newest.created - time.time()) < 60
    assert models.at(CHAMPION) is None
    with pytest.raises(UserError, match=r"no version or alias 'champion' of the model 'retriever': there are 2, 1"):
        models.find(CHAMPION)
    models.promote("1")
    assert models.find(CHAMPION).number == models.find("1").number == "1"


def test_a_long_card_is_cut_and_an_address_is_a_source(uri: str) -> None:
    models = open_registry(uri, "long")
    models.register("s3://bucket/bundle", {}, {}, "line\n" * 2000)
    (version,) = models.versions()
    assert version.card.endswith("line\n…") and 4900 < len(version.card) <= 5000
    assert version.tags["bundle"] == "s3://bucket/bundle"


def test_champion_and_previous(uri: str) -> None:
    models = with_versions(uri, "aliases", 3)
    with pytest.raises(UserError, match="has no previous champion"):
        models.roll_back()
    models.promote("1")
    assert aliases(models) == {CHAMPION: "1"}
    with pytest.raises(UserError, match="has no previous champion"):
        models.roll_back()
    models.promote("3")
    assert aliases(models) == {CHAMPION: "3", PREVIOUS: "1"}
    models.promote("3")
    assert aliases(models) == {CHAMPION: "3", PREVIOUS: "1"}, "the champion is not its own predecessor"
    assert models.roll_back() == ("1", "3")
    assert aliases(models) == {CHAMPION: "1", PREVIOUS: "3"}
    models.promote("2")
    assert aliases(models) == {CHAMPION: "2", PREVIOUS: "1"}


def test_turns_are_taken_one_after_the_other(uri: str) -> None:
    inside, together, entered = threading.Lock(), [], []

    def take(number: int) -> None:
        with open_registry(uri, "busy").turn():
            together.append(not inside.acquire(blocking=False))
            entered.append(number)
            time.sleep(0.1)
            inside.release()

    threads = [threading.Thread(target=take, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entered) == [0, 1, 2, 3]
    assert not any(together)


def test_a_turn_ends_with_its_block_even_in_an_error(uri: str) -> None:
    models = open_registry(uri, "error")
    with pytest.raises(ZeroDivisionError), models.turn():
        raise ZeroDivisionError
    with models.turn():
        pass


HOLD = """
import sys, time
from gnn_encoder.registry import open_registry
with open_registry(sys.argv[1], "dead").turn():
    print("mine", flush=True)
    time.sleep(600)
"""


def test_the_turn_of_a_process_that_died_passes_on(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, uri], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "mine\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    monkeypatch.setattr(registry, "STALE_SECONDS", 2.0)
    began = time.monotonic()
    with open_registry(uri, "dead").turn():
        assert time.monotonic() - began >= 2.0  # nobody could know that it was dead
    began = time.monotonic()
    with open_registry(uri, "dead").turn():
        assert time.monotonic() - began < 2.0


def test_a_process_that_was_taken_for_dead_is_told(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = open_registry(uri, "slow")
    first = slow._first_ticket

    def torn() -> int | None:
        slow._tear(1)
        return first()

    monkeypatch.setattr(slow, "_first_ticket", torn)
    with pytest.raises(UserError, match="given to another process: run it again"), slow.turn():
        pass


def test_a_store_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot use the MLflow store .* or set MLFLOW_TRACKING_URI") as caught:
        open_registry(f"sqlite:///{tmp_path}/file/mlflow.db", "m").versions()
    assert "\n" not in str(caught.value)
