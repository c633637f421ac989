"""A server follows its bundle's name to other bundles."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from bundles import damaged
from http_server import ids, serving
from registered import register
from waiting import wait_for

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.folder import MANIFEST
from gnn_encoder.errors import UserError
from gnn_encoder.promotion.registry import BUNDLE, DIGEST, open_registry
from gnn_encoder.serving import following
from gnn_encoder.serving.following import Followed


def pointed(link: Path, target: Path) -> None:
    fresh = link.with_name("fresh")
    fresh.symlink_to(target)
    fresh.replace(link)


def test_a_moved_link_is_followed_and_a_damaged_bundle_is_not(bundles: dict[str, Path], tmp_path: Path) -> None:
    link, question = tmp_path / "bundle", "the old river"
    pointed(link, bundles["vectors"])
    expected = {}
    for name in ("vectors", "words"):
        opened = Retriever.load(bundles[name])
        expected[opened.bundle.manifest.digest[:12]] = [hit.passage_id for hit in opened.search(question, 5)]
    assert len({tuple(hits) for hits in expected.values()}) == 2
    answers: list[tuple[int, Any]] = []
    with serving(link, look_seconds=0.05) as server:
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                answers.append(server.search(questions=question, k=5))

        clients = [threading.Thread(target=load) for _ in range(2)]
        for client in clients:
            client.start()
        first, second = expected
        pointed(link, bundles["words"])
        wait_for(lambda: server.followed.current.version == second, 20)
        pointed(link, damaged(bundles["vectors"], tmp_path / "damaged"))
        wait_for(lambda: server.followed.refused, 20)
        facts = json.loads(server.send("GET", "/health/ready")[2])
        assert facts["version"] == second and "log" in facts["refused"] and "vectors.npy" in server.followed.refused
        pointed(link, bundles["vectors"])
        wait_for(lambda: server.followed.current.version == first, 20)
        time.sleep(0.2)
        stop.set()
        for client in clients:
            client.join()
        _, _, figures = server.send("GET", "/metrics")
        assert b"gnn_encoder_bundle_swaps_total 2.0" in figures and first.encode() in figures
        assert b"gnn_encoder_bundle_refused 0.0" in figures
    assert {status for status, _ in answers} == {200}
    assert {answer["version"] for _, answer in answers} == {first, second}
    assert all(ids(answer["results"][0]) == expected[answer["version"]] for _, answer in answers)


@pytest.mark.slow
def test_an_alias_is_followed(bundles: dict[str, Path], tmp_path: Path) -> None:
    registry = open_registry(f"sqlite:///{tmp_path / 'mlflow.db'}", "gnn-encoder")
    paths = [bundles["vectors"], bundles["both"], damaged(bundles["both"], tmp_path / "damaged")]
    numbers = []
    for path in paths:
        digest = json.loads((path / MANIFEST).read_text())["digest"]
        numbers.append(register(registry, str(path), {BUNDLE: str(path), DIGEST: digest}, {}, "a card"))
    assert registry.promote(numbers[0])
    followed = Followed("models:/gnn-encoder@champion", tmp_path)
    assert followed.current.version == numbers[0] and not followed.look()
    assert registry.promote(numbers[1]) and followed.look()
    assert followed.current.version == numbers[1] and followed.current.system == "BM25 + both"
    assert registry.promote(numbers[2]) and not followed.look()
    assert followed.current.version == numbers[1] and followed.refused and not followed.look() and followed.refused
    assert registry.promote(numbers[0]) and followed.look() and not followed.refused
    other = Bundle.read(bundles["vectors"]).manifest.digest
    wrong = register(registry, str(paths[1]), {BUNDLE: str(paths[1]), DIGEST: other}, {}, "another's digest")
    assert registry.promote(wrong) and not followed.look() and "is not the bundle" in followed.refused
    with pytest.raises(UserError, match="is not the bundle"):
        Followed("models:/gnn-encoder@champion", tmp_path)


def test_a_store_that_fails_for_a_while_is_asked_again(
    bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointed(tmp_path / "bundle", bundles["vectors"])
    followed = Followed(str(tmp_path / "bundle"), tmp_path)
    first = followed.current

    def fails(*arguments: object) -> None:
        raise RuntimeError("the store is away")

    pointed(tmp_path / "bundle", bundles["both"])
    with monkeypatch.context() as patch:
        patch.setattr(Followed, "_opened", fails)
        assert not followed.look() and followed.refused == "the store is away" and followed.current is first
    assert not followed.look() and followed.refused, "not at once"
    monkeypatch.setattr(following, "RETRY", 0.0)
    followed._retry_at = 1e-9
    assert followed.look() and not followed.refused and followed.current.system == "BM25 + both"
    with monkeypatch.context() as patch:
        patch.setattr(Followed, "_look_up", fails)
        assert not followed.look() and followed.refused
    assert not followed.look() and not followed.refused, "the name leads where it led"


@pytest.mark.slow
def test_a_server_is_ready_before_transformers_is_imported(bundles: dict[str, Path]) -> None:
    """That import takes 2.5 s of processor time. Until it is done, NumPy encodes a lone question."""
    program = (
        "import sys\nimport numpy as np\nfrom pathlib import Path\n"
        "from gnn_encoder.serving.app import create_app\nfrom gnn_encoder.serving.following import Followed\n"
        f"followed = Followed({str(bundles['both'])!r}, Path('none'))\ncreate_app(followed)\n"
        "retriever, question = followed.current.retriever, ['the old river']\n"
        "heavy = {'transformers', 'scipy', 'sympy', 'mlflow', 'kfp', 'boto3', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "quick = retriever.encode_queries(question)\nretriever.load_encoder()\n"
        "print('transformers' in sys.modules, np.abs(quick - retriever.encode_queries(question)).max() < 1e-6)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True True"]
