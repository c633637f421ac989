"""Versions, aliases and their moves, in a real MLflow store on SQLite."""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from registered import register
from sqlalchemy.orm import Session

from gnn_encoder.errors import UserError
from gnn_encoder.promotion.registry import CHAMPION, PREVIOUS, Aliases, Registry, open_registry


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"


def with_versions(uri: str, name: str, count: int) -> Registry:
    models = open_registry(uri, name)
    for i in range(1, count + 1):
        assert register(models, f"/bundles/{i}", {"digest": f"d{i}"}, {"test/R@100": i / 8}, "# A card") == str(i)
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
    assert models.aliases() == Aliases(None, None, "0")
    with pytest.raises(UserError, match=r"no version or alias 'champion' of the model 'retriever': there are 2, 1"):
        models.find(CHAMPION)
    models.promote("1")
    assert models.find(CHAMPION).number == models.find("1").number == "1"


def test_a_long_card_is_cut_and_the_address_is_kept(uri: str) -> None:
    models = open_registry(uri, "long")
    register(models, "s3://bucket/bundle", {}, {}, "line\n" * 2000)
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


@pytest.mark.slow
def test_only_the_first_of_several_moves_counts(uri: str) -> None:
    models = with_versions(uri, "contested", 12)
    seen = models.aliases()
    with ThreadPoolExecutor(4) as threads:
        won = list(threads.map(lambda number: models.promote(str(number), seen), range(1, 13)))
    assert won.count(True) == 1
    champion = str(1 + won.index(True))
    assert aliases(models) == {CHAMPION: champion}
    assert not models.promote("1", seen) and aliases(models) == {CHAMPION: champion}
    assert models.promote("1", models.aliases()), "the control"


@pytest.mark.slow
def test_moves_by_hand_all_count_one_after_the_other(uri: str) -> None:
    models = with_versions(uri, "busy", 4)
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda number: models.promote(str(number)), range(1, 5)))
    moves = [models._client.get_model_version("busy.moves", move.version).tags for move in models._valid_moves()]
    assert sorted(move[CHAMPION] for move in moves) == ["1", "2", "3", "4"]
    assert all(later[PREVIOUS] == earlier[CHAMPION] for earlier, later in pairwise(moves))
    assert aliases(models) == {CHAMPION: moves[-1][CHAMPION], PREVIOUS: moves[-1][PREVIOUS]}


def test_whoever_moves_an_alias_in_the_store_itself_is_obeyed(uri: str) -> None:
    models = with_versions(uri, "by hand", 3)
    models.promote("1")
    seen = models.aliases()
    models._client.set_registered_model_alias("by hand", CHAMPION, "2")
    assert models.aliases() == Aliases("2", None, seen.move) != seen
    models.promote("3")
    assert aliases(models) == {CHAMPION: "3", PREVIOUS: "2"}


def die_before_the_alias(uri: str, name: str) -> None:
    """A process that moves the champion to version 1, and ends before it has set the alias."""
    dying = open_registry(uri, name)

    def die(*_: str) -> None:
        raise KeyboardInterrupt

    dying._client.set_registered_model_alias = die
    with pytest.raises(KeyboardInterrupt):
        dying.promote("1")


def test_nobody_waits_for_a_process_that_died(uri: str) -> None:
    models = with_versions(uri, "dead", 2)
    die_before_the_alias(uri, "dead")
    assert aliases(models) == {}
    assert models.aliases() == Aliases("1", None, "1"), "its move counts, and the next process sets its aliases"
    models.promote("2")
    assert aliases(models) == {CHAMPION: "2", PREVIOUS: "1"}


def test_a_champion_that_somebody_deleted_does_not_block_the_next(uri: str) -> None:
    models = with_versions(uri, "deleted", 2)
    die_before_the_alias(uri, "deleted")
    models._client.delete_model_version("deleted", "1")
    assert models.aliases() == Aliases(None, None, "1")
    models.promote("2")
    assert aliases(models) == {CHAMPION: "2"}


@pytest.mark.parametrize("method", ["set_registered_model_alias", "set_model_version_tag"])
def test_two_processes_that_insert_the_same_row_at_once(uri: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between one's look for the row and its insertion, the other one inserts it."""
    models, other = with_versions(uri, method, 1), open_registry(uri, method)
    call, merge = getattr(models._client, method), Session.merge

    def overtaken(session: Session, row: Any) -> Any:
        monkeypatch.undo()
        merged = merge(session, row)
        other.aliases()
        return merged

    def call_overtaken(*arguments: str) -> None:
        if method == "set_registered_model_alias" or arguments[-1] == "yes":
            monkeypatch.setattr(Session, "merge", overtaken)
        call(*arguments)

    monkeypatch.setattr(models._client, method, call_overtaken)
    assert models.promote("1")
    assert aliases(models) == {CHAMPION: "1"}


def test_a_request_that_was_sent_twice_counts_once(uri: str) -> None:
    """MLflow's client sends a request again if the answer was lost."""
    models = with_versions(uri, "twice", 1)
    create = models._client.create_model_version

    def twice(*arguments: Any, **more: Any) -> Any:
        create(*arguments, **more)
        return create(*arguments, **more)

    models._client.create_model_version = twice
    assert models.promote("1", models.aliases())
    assert aliases(models) == {CHAMPION: "1"} and len(models._valid_moves()) == 1


def test_a_store_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot use the MLflow store .* or set MLFLOW_TRACKING_URI") as caught:
        open_registry(f"sqlite:///{tmp_path}/file/mlflow.db", "m").versions()
    assert "\n" not in str(caught.value)
