"""GET and POST /judging: what is judged next, what is told and what not, and what is kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from http_server import JSON, Server, serving
from judged_folder import MARKUP, write_folder

from gnn_encoder.errors import UserError
from gnn_encoder.judging.people import People
from gnn_encoder.judging.pool import FIGURES, ORDER

TOKEN = "a-secret-of-this-test"


def give(server: Server, **grade: Any) -> tuple[int, Any]:
    status, _, body = server.send("POST", "/judging", json.dumps(grade).encode(), JSON)
    return status, json.loads(body)


def progress(server: Server) -> Any:
    status, _, body = server.send("GET", "/judging")
    assert status == 200
    return json.loads(body)


def test_people_judge_blindly_go_on_after_a_restart_and_finish(bundles: dict[str, Path], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "judged")
    with serving(bundles["vectors"], judge=folder) as server:
        before = progress(server)
        assert (before["judged"], before["deciding"], before["queries"]) == (0, 12, 15)
        assert before["agreement"] is None and before["gains"][0]["low"] is None and before["shown"] is None
        assert "reason of" not in json.dumps(before)
        first = before["next"]
        assert (first["number"], first["of"]) == (1, 3) and MARKUP in first["query"] and MARKUP in first["text"]
        pair = {"query_id": first["query_id"], "passage_id": first["passage_id"]}
        status, after = give(server, **pair, grade=2)
        assert status == 200 and after["graded"] == 1 and after["next"]["number"] == 2
        assert after["shown"]["reason"].startswith(f"reason of {pair['passage_id']}")
        assert after["agreement"]["pairs"] == 1
        status, back = give(server, **pair, grade=None)
        assert status == 200 and back["graded"] == 0 and back["next"] == first and back["shown"] is None
        # Skipped queries leave, and come back.
        status, skipped = give(server, query_id=pair["query_id"], grade=None)
        assert (skipped["skipped"], skipped["deciding"]) == (1, 11) and skipped["next"]["query_id"] != pair["query_id"]
        assert give(server, query_id=pair["query_id"], grade=0)[1]["next"] == first
        give(server, **pair, grade=3)
        said = progress(server)
    with serving(bundles["vectors"], judge=folder) as server:
        progressed = progress(server)
        assert progressed == said
        while progressed["next"]:
            following = progressed["next"]
            passage = following["passage_id"]
            _, progressed = give(
                server,
                query_id=following["query_id"],
                passage_id=passage,
                grade=3 * passage.endswith("ab"[progressed["judged"] % 2]),
            )
            assert (progressed["gains"][0]["low"] is None) == (progressed["judged"] < 10)
        assert (progressed["judged"], progressed["graded"], progressed["agreement"]["pairs"]) == (12, 36, 36)
        assert b'gnn_encoder_requests_total{path="/judging",status="200"}' in server.send("GET", "/metrics")[2]
        gain = progressed["gains"][0]
        assert gain["low"] < gain["estimate"] < gain["high"] and progressed["baseline"] == "BM25"
    assert len(People.read(folder / "people.jsonl").grades) == 36


def test_people_alone(bundles: dict[str, Path], tmp_path: Path) -> None:
    with serving(bundles["vectors"], judge=write_folder(tmp_path / "judged", by_model=False)) as server:
        following = progress(server)["next"]
        _, progressed = give(server, query_id=following["query_id"], passage_id=following["passage_id"], grade=1)
        assert progressed["shown"]["grade"] is None and progressed["agreement"] is None


def test_what_is_no_grade_is_refused(bundles: dict[str, Path], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "judged")
    with serving(bundles["vectors"], judge=folder) as server:
        for wrong, words in (
            ({"query_id": "q1", "passage_id": "q2-a", "grade": 1}, "no such hit"),
            ({"query_id": "none", "passage_id": "q2-a", "grade": 1}, "no such hit"),
            ({"query_id": "q1", "passage_id": "q1-a", "grade": 4}, "grade: "),
            ({"query_id": "q1", "passage_id": "q1-a", "grade": "2"}, "grade: "),
            ({"query_id": "q1", "grade": 2}, "takes 0 or none"),
            ({"query_id": "q1", "passage_id": "q1-a", "grade": True}, "grade: "),
            ({"passage_id": "q1-a"}, "query_id: "),
        ):
            status, answer = give(server, **wrong)
            assert status == 422 and words in answer["detail"], wrong
        assert server.send("GET", "/judging", headers={"Host": "attacker.example"})[0] == 421
        crossed = JSON | {"Sec-Fetch-Site": "cross-site"}
        assert server.send("POST", "/judging", b"{}", crossed)[0] == 421
        with pytest.raises(UserError, match="another server"), serving(bundles["vectors"], judge=folder):
            pass
    assert not (folder / "people.jsonl").read_bytes()
    with serving(bundles["vectors"], judge=folder, token=TOKEN) as server:
        assert server.send("GET", "/judge")[0] == 200 and server.send("GET", "/judging")[0] == 401
        assert server.send("POST", "/judging", b"{}", JSON)[0] == 401
    with serving(bundles["vectors"]) as server:  # without --judge there is no such thing
        assert [server.send("GET", path)[0] for path in ("/judge", "/judge.js", "/judging")] == [404] * 3
    (folder / FIGURES).write_text("{}", encoding="utf-8")
    other = write_folder(tmp_path / "other")
    (other / ORDER).write_text((other / ORDER).read_text("utf-8").replace('"q1"', '"q99"'), encoding="utf-8")
    with pytest.raises(UserError, match="is of other queries"), serving(bundles["vectors"], judge=other):
        pass
    for damaged, message in ((folder, "has no settings"), (tmp_path, "name the folder of `gnn-encoder judge`")):
        with pytest.raises(UserError, match=message), serving(bundles["vectors"], judge=damaged):
            pass
