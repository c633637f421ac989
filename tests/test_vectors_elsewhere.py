"""Encoders whose weights are elsewhere: a service at an address, and vectors in a folder."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundles import write_bm25
from command_line import call
from embeddings_service import MODEL, Service, service_of
from http_server import ids, serving
from trained_root import write_beir

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, Run, drafting, read_vectors
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, read_rows
from gnn_encoder.artifacts.digests import WORDS
from gnn_encoder.artifacts.finished_run import labelled_bundle
from gnn_encoder.data.given_vectors import GivenVectors
from gnn_encoder.errors import Unreachable, UserError
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.models.address import AddressEncoder, RefusedText
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.serving.following import PROBE
from gnn_encoder.settings.first_stage import FirstStage
from gnn_encoder.settings.foundation import Encode
from gnn_encoder.settings.outcome import BundleDualEncoder
from gnn_encoder.settings.presets import load_settings, parse_settings
from gnn_encoder.settings.services import ALLOWED, BASE, KEY, allow_key, may_have_key
from gnn_encoder.settings.systems import LEXICAL, UNTRAINED
from gnn_encoder.steps.bundle_dual_encoder import bundle_dual_encoder
from gnn_encoder.steps.encode import encode
from gnn_encoder.steps.first_stage import first_stage
from gnn_encoder.tracking.context import CHECKPOINTS
from gnn_encoder.update.paid import Paid

SECRET = "not-for-files"


@pytest.fixture
def service(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv(KEY, SECRET)
    monkeypatch.setattr("gnn_encoder.models.address.WAITS", {"max_retries": 2, "timeout": 20.0})
    with service_of(tiny_backbone) as running:
        allow_key([running.address])
        yield running


def encoded(data: Path, folder: Path, **settings: Any) -> tuple[DualEncoder, Path]:
    folder.mkdir()
    outputs = {"dual_encoder": folder / "dual_encoder", "passage_vectors": folder / "vectors"}
    encode(Encode(vector_type="fp32", **settings), dataset=data, **outputs)
    return DualEncoder.load(outputs["dual_encoder"]), outputs["passage_vectors"]


def test_vectors_are_the_services_and_each_text_is_sent_once(
    service: Service, tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    monkeypatch.setattr("gnn_encoder.models.address.TEXTS", 10)
    model, vectors = encoded(tiny_dataset.path, tmp_path / "once", encoder=f"{service.address}#{MODEL}")
    expected = service.model.encode(tiny_dataset.passages.take(np.arange(100)).full_texts())
    np.testing.assert_allclose(read_vectors(vectors), expected, atol=1e-5)
    for name, rows in ((QUERIES, tiny_dataset.query_rows("train")), (EVALUATED, evaluated_queries(tiny_dataset))):
        np.testing.assert_allclose(
            read_rows(vectors, name), service.model.encode(tiny_dataset.query_texts(rows)), atol=1e-5
        )
    texts_before = service.texts.copy()
    known = tiny_dataset.query_texts(evaluated_queries(tiny_dataset))
    np.testing.assert_array_equal(model.query_encoder.encode(known), read_rows(vectors, EVALUATED))  # type: ignore[operator]
    assert service.texts == texts_before, "the evaluated queries are known"
    assert set(service.texts.values()) == {1} and service.keys == {f"Bearer {SECRET}"}
    assert isinstance(model.query_encoder, AddressEncoder) and model.query_encoder.model == MODEL
    written = [file.read_bytes() for file in (tmp_path / "once").rglob("*") if file.is_file()]
    assert not any(SECRET.encode() in content for content in written)


def test_an_interrupted_call_does_not_pay_again(
    service: Service, tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    monkeypatch.setattr("gnn_encoder.models.address.TEXTS", 10)
    monkeypatch.setattr("gnn_encoder.models.address.THREADS", 1)
    service.fails_after, service.repeats_the_key = 75, True
    with pytest.raises(
        UserError, match=f"{service.address}#{MODEL} gives no vectors: .*the quota is used up"
    ) as caught:
        encoded(tiny_dataset.path, tmp_path / "first", encoder=service.address)
    assert SECRET not in str(caught.value)
    while any(thread.name.startswith("embeddings") for thread in threading.enumerate()):
        time.sleep(0.01)  # a request that was under way when another failed
    assert service.texts.total() == 71, "a word, and seven requests"
    service.fails_after = 1 << 30
    encoded(tiny_dataset.path, tmp_path / "second", encoder=service.address)
    paid = service.texts.copy()
    assert {text for text, count in paid.items() if count > 1} == {"word"}, "each start asks for it"
    encoded(tiny_dataset.path, tmp_path / "third", encoder=service.address, query_length=9)
    assert (service.texts - paid) == {"word": 1}, "another call of the same service"


def test_a_text_that_is_too_long_is_cut_and_the_others_are_not(service: Service) -> None:
    service.longest = 500
    texts = ["river " * 200, "an old river", "violin " * 60]
    vectors = AddressEncoder.at(service.address).encode(texts)
    np.testing.assert_allclose(vectors, service.model.encode([texts[0][:300], *texts[1:]]), atol=1e-5)


def test_a_refused_text_is_named_unless_the_service_refuses_any(service: Service) -> None:
    encoder, long = AddressEncoder.at(service.address), "river " * 80
    service.longest = 100
    with pytest.raises(RefusedText) as refused:
        encoder.encode(["an old river", long, "garden"])
    assert refused.value.text == long
    service.longest = 0  # as of a wrong model or parameter, which some services answer with 400, too
    with pytest.raises(Unreachable, match="context length is exceeded") as unreachable:
        encoder.encode(["an old river"])
    assert not isinstance(unreachable.value, RefusedText)


def test_the_key_goes_where_the_user_said(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"encode": {"encoder": f"{service.address}#{MODEL}"}}

    def keys() -> set[str]:
        service.keys.clear()
        AddressEncoder.at(parse_settings(stored).encode.encoder).save(tmp_path)
        AddressEncoder.load(tmp_path).encode(["a question"])
        return service.keys

    monkeypatch.setenv(ALLOWED, "")
    assert keys() == {"Bearer none"}, "a stored run names it"
    for variable in (ALLOWED, BASE):
        monkeypatch.setenv(variable, service.address)
        assert keys() == {f"Bearer {SECRET}"}, "the user lists it"
        monkeypatch.setenv(variable, "")
    (tmp_path / "mine.yaml").write_text(json.dumps(stored))
    for named in ("preset", "override"):
        monkeypatch.setenv(ALLOWED, "https://127.0.0.1/other")
        if named == "preset":
            load_settings(str(tmp_path / "mine.yaml"))
        else:
            parse_settings({}, [f"encode.encoder={service.address}#{MODEL}"])
        assert keys() == {f"Bearer {SECRET}"}, f"the user's {named} names it"


def test_a_service_without_the_key_says_how_to_allow_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "")
    service.fails_after, service.status = 0, 401
    with pytest.raises(UserError, match=f"the key was not sent: {ALLOWED}={service.address} allows it$"):
        AddressEncoder.at(f"{service.address}#{MODEL}")


def test_addresses_without_tls_have_to_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "")
    allow_key(["http://10.0.0.1/v1", "https://models.example/v1", "http://localhost:1/v1", "http://[no", "https://[no"])
    assert not may_have_key("http://[no")
    allowed = {
        one: may_have_key(one) for one in ("http://10.0.0.1/v1", "https://models.example/v1/", "https://models.example")
    }
    assert list(allowed.values()) == [False, True, False] and may_have_key("https://api.openai.com/v1")
    assert not may_have_key("https://api.openai.com.example/v1") and not may_have_key("http://api.openai.com/v1")


@pytest.mark.parametrize(
    "answer",
    [{}, {"data": None}, {"data": [{"embedding": [1.0]}]}, {"data": [{"index": 1, "embedding": [1.0]}]},
     {"data": [{"index": 0, "embedding": [[1.0]]}]}, {"data": [{"index": 0, "embedding": "AAAA"}]},
     {"data": [{"index": 0, "embedding": [float("nan")]}]}],
)  # fmt: skip
def test_an_answer_that_is_not_openais_is_one_line(service: Service, answer: dict[str, Any]) -> None:
    service.answer = lambda *_: (200, answer)  # type: ignore[method-assign]
    with pytest.raises(UserError, match=f"{service.address}#{MODEL} gives no vectors: "):
        AddressEncoder.at(f"{service.address}#{MODEL}")


def test_what_fails_for_a_while_is_asked_again(service: Service) -> None:
    service.fails_after, service.status, service.failures = 1, 429, 2
    vectors = AddressEncoder.at(service.address).encode(["an old river", "a hidden violin"])
    np.testing.assert_allclose(vectors, service.model.encode(["an old river", "a hidden violin"]), atol=1e-5)
    assert service.failures == 0


def test_lengths_are_made_equal_if_asked(service: Service) -> None:
    plain, unit = (AddressEncoder.at(service.address, how).encode(["an old river"]) for how in ("auto", "yes"))
    assert np.linalg.norm(unit) == pytest.approx(1) and np.linalg.norm(plain) != pytest.approx(1)


@pytest.mark.parametrize(
    ("suffix", "message"),
    [("#other", "no model other"), ("/nowhere", "has the models"), ("?version=2", "a query"), ("", "a password")],
)
def test_a_service_that_does_not_fit_is_one_line(service: Service, suffix: str, message: str) -> None:
    name = service.address + suffix if suffix else "http://me:secret@127.0.0.1/v1"
    if suffix == "/nowhere":
        service.answer = lambda *_: (200, {"object": "list", "data": []})  # type: ignore[method-assign]
    with pytest.raises(UserError, match=message) as caught:
        AddressEncoder.at(name)
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_paid_vectors_survive_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnn_encoder.update.paid.RECENT", 5)
    generator = np.random.default_rng(0)
    digests, vectors = generator.integers(1 << 62, size=(20, 2)).astype(WORDS), generator.normal(size=(20, 3))
    paid = Paid(tmp_path, 3)
    for start in range(0, 18, 3):
        paid.add(digests[start : start + 3], vectors[start : start + 3])
    with (tmp_path / "vectors").open("ab") as file:
        file.write(b"a part of an answer")
    for opened in (paid, Paid(tmp_path, 3)):
        is_paid, theirs = opened.find(digests[::-1])
        assert is_paid.tolist() == [False] * 2 + [True] * 18
        np.testing.assert_array_equal(theirs, vectors[:18][::-1].astype(np.float32))
    again = Paid(tmp_path, 3)
    again.add(digests[18:], vectors[18:])
    np.testing.assert_array_equal(again.find(digests)[1], vectors.astype(np.float32))


def write_vectors(folder: Path, data: Dataset, form: str, vectors: dict[str, np.ndarray]) -> None:
    folder.mkdir()
    every = {"corpus": data.passages.ids().to_pylist(), "queries": data.queries.column("query_id").to_pylist()}
    for name, ids_of in every.items():
        order = np.random.default_rng(0).permutation(len(ids_of))
        shuffled = [ids_of[row] for row in order]
        if form == "npy":
            np.save(folder / f"{name}.npy", vectors[name][order])
            (folder / f"{name}.txt").write_text("".join(f"{one}\n" for one in shuffled), encoding="utf-8")
        else:
            pq.write_table(pa.table({"id": shuffled, "vector": list(vectors[name][order])}), folder / f"{name}.parquet")


@pytest.fixture
def vectors(tiny_dataset: Dataset) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    counts = {"corpus": len(tiny_dataset.passages), "queries": len(tiny_dataset.queries)}
    return {name: generator.normal(size=(count, 12)).astype(np.float32) for name, count in counts.items()}


@pytest.mark.parametrize("form", ["npy", "parquet"])
def test_given_vectors_find_their_ids(
    form: str, tiny_dataset: Dataset, vectors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnn_encoder.data.given_vectors.ROWS", 7)
    write_vectors(tmp_path / "given", tiny_dataset, form, vectors)
    model, stored = encoded(tiny_dataset.path, tmp_path / "encoded", encoder="", vectors=str(tmp_path / "given"))
    np.testing.assert_array_equal(read_vectors(stored), vectors["corpus"])
    for name, rows in ((QUERIES, tiny_dataset.query_rows("train")), (EVALUATED, evaluated_queries(tiny_dataset))):
        np.testing.assert_array_equal(read_rows(stored, name), vectors["queries"][rows])
    known = tiny_dataset.query_texts(evaluated_queries(tiny_dataset))
    np.testing.assert_array_equal(
        model.query_encoder.encode(known[:3]),  # type: ignore[operator]
        vectors["queries"][evaluated_queries(tiny_dataset)[:3]],
    )
    with pytest.raises(UserError, match=f"{tmp_path / 'given'} has no vector of this text: name an encoder"):
        model.query_encoder.encode(["a new question"])  # type: ignore[operator]


def test_the_hits_to_re_rank_are_found_with_the_given_vectors(
    tiny_dataset: Dataset, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """No other text has a vector, so an encoder that is asked refuses, as the control does."""
    write_vectors(tmp_path / "given", tiny_dataset, "npy", vectors)
    _, stored = encoded(tiny_dataset.path, tmp_path / "encoded", encoder="", vectors=str(tmp_path / "given"))
    artifacts = {"dataset": tiny_dataset.path, "bm25_index": write_bm25(tiny_dataset.path, tmp_path / "bm25_index")}
    bundle_dual_encoder(
        BundleDualEncoder(system=UNTRAINED, vector_type="fp32"), **artifacts, passage_vectors=stored,
        dual_encoder=tmp_path / "encoded" / "dual_encoder", bundle=tmp_path / "bundle",
    )  # fmt: skip
    with drafting(tmp_path / "bm25_run", "run") as draft:
        Run.from_hits(np.empty(0, np.int32), np.empty((0, 1), np.int32), np.empty((0, 1))).write(draft, LEXICAL)
    read = {**artifacts, "bm25_run": tmp_path / "bm25_run", "bundle": tmp_path / "bundle"}
    first_stage(FirstStage(train_depth=3, eval_depth=5), **read, passage_vectors=stored, run=tmp_path / "run")
    run, evaluated = Run.read(tmp_path / "run"), evaluated_queries(tiny_dataset)
    scores = vectors["queries"][evaluated] @ vectors["corpus"].T
    np.testing.assert_array_equal(run.scored_hits(evaluated, 5)[1], np.argsort(-scores, axis=1, kind="stable")[:, :5])
    assert set(run.query) == {*evaluated.tolist(), *tiny_dataset.trained.tolist()}
    with pytest.raises(UserError, match="has no vector of this text"):
        first_stage(FirstStage(train_depth=3, eval_depth=5), **read, run=tmp_path / "control")


def test_a_query_without_a_vector_is_encoded_or_refused(
    service: Service, tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    counts = {"corpus": len(tiny_dataset.passages), "queries": len(tiny_dataset.queries)}
    write_vectors(tmp_path / "given", tiny_dataset, "npy", {n: np.ones((c, 32), np.float32) for n, c in counts.items()})
    lines = (tmp_path / "given" / "queries.txt").read_text().splitlines()
    added = tiny_dataset.query_rows("train")[0]
    added_id = tiny_dataset.queries.column("query_id")[int(added)].as_py()
    (tmp_path / "given" / "queries.txt").write_text("".join(f"{'x' if i == added_id else i}\n" for i in lines))
    with pytest.raises(UserError, match="has no vector of this text: name an encoder"):
        encoded(tiny_dataset.path, tmp_path / "refused", encoder="", vectors=str(tmp_path / "given"))
    _, stored = encoded(
        tiny_dataset.path, tmp_path / "encoded", encoder=service.address, vectors=str(tmp_path / "given")
    )
    (text,) = tiny_dataset.query_texts(np.array([added]))
    assert set(service.texts) == {"word", text}, "the others have theirs"
    np.testing.assert_allclose(read_rows(stored, QUERIES)[0], service.model.encode(text), atol=1e-5)
    assert (read_rows(stored, QUERIES)[1:] == 1).all()


def without(name: str, vectors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**vectors, name: np.full_like(vectors[name], np.nan)}


def test_given_vectors_that_do_not_fit_are_one_line(
    tiny_dataset: Dataset, vectors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"encode\.encoder is empty"):
        encoded(tiny_dataset.path, tmp_path / "nothing", encoder="")
    with pytest.raises(UserError, match=r"neither corpus\.parquet nor corpus\.npy"):
        GivenVectors.of(tmp_path, "corpus")
    pq.write_table(pa.table({"_id": ["a"], "vector": [[1.0]]}), tmp_path / "queries.parquet")
    with pytest.raises(UserError, match="has the columns _id, vector: name them id and vector"):
        GivenVectors.of(tmp_path, "queries")
    np.save(tmp_path / "corpus.npy", np.ones((3, 2), np.float32))
    with pytest.raises(UserError, match="write the id of each row"):
        GivenVectors.of(tmp_path, "corpus")
    wanted, out = pa.chunked_array([["a", "b"]]), np.empty((2, 2), np.float32)
    for lines, message in (
        ("a\nc\nd\n", r"no vector for 1 of 2 ids \('b'"),
        ("a\nb\na\n", r"two vectors for 1 of 2 ids \('a'"),
        ("a\nb\n", "has 3 rows, and 2 ids"),
        ("a\nb\nc\nd\n", "fewer than its ids"),
    ):
        (tmp_path / "corpus.txt").write_text(lines)
        with pytest.raises(UserError, match=message):
            GivenVectors.of(tmp_path, "corpus").fill(wanted, out)
    write_vectors(tmp_path / "infinite", tiny_dataset, "npy", without("corpus", vectors))
    with pytest.raises(UserError, match="not finite"):
        encoded(tiny_dataset.path, tmp_path / "first", encoder="", vectors=str(tmp_path / "infinite"))
    write_vectors(tmp_path / "narrow", tiny_dataset, "npy", {**vectors, "queries": vectors["queries"][:, :5]})
    with pytest.raises(UserError, match="are 5, 12 wide"):
        encoded(tiny_dataset.path, tmp_path / "second", encoder="", vectors=str(tmp_path / "narrow"))


FAST = [
    "--set", "evaluate.permutations=50", "--set", "evaluate.resamples=20", "--set", "encode_with_labels.kinds=[]",
    "--set", "fuse_parts.kinds=[linear]",
]  # fmt: skip


@pytest.mark.slow
def test_a_run_asks_the_service_and_its_bundle_does_too(
    service: Service,
    tiny_dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, root = write_beir(tiny_dataset, tmp_path / "data"), tmp_path / "root"
    ladder = ["run", "--dataset", str(data), "--root", str(root), "--until", "labels", *FAST]
    assert call(*ladder, "--encoder", service.address) == 0
    shown = capsys.readouterr().out
    assert f"{MODEL} at {service.address}, 32 numbers a vector" in shown and "each text is sent once" in shown
    assert "none: the encoder's weights are elsewhere" in shown
    sent = service.texts.copy()
    assert {text for text, count in sent.items() if count > 1} <= {"word"}
    bundle = labelled_bundle(root / "latest")
    hits = Retriever(Bundle.read(bundle.resolve())).search("a question that nobody asked", 5)
    assert len(hits) == 5 and service.texts["a question that nobody asked"] == 1
    with serving(bundle.resolve()) as server:
        status, answer = server.search(questions=["a question that nobody asked"])
        assert (status, ids(answer["results"][0])[:5]) == (200, [hit.passage_id for hit in hits])
        service.fails_after = 0
        status, answer = server.search(questions=["another one"])
        assert status == 503 and "gives no vectors" in answer["detail"] and service.address not in answer["detail"]
    assert call("search", "another one", "--bundle", str(bundle)) == 2
    assert "the quota is used up" in capsys.readouterr().err
    service.fails_after = 1 << 30
    with (data / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"_id": "later", "title": "", "text": "a passage that came later"}) + "\n")
    service.keys.clear()
    monkeypatch.setenv(ALLOWED, "")
    assert call("update", "--root", str(root)) == 0
    assert service.keys == {"Bearer none"}, "the run names the address, and not the user"
    new = set(service.texts - sent) - {"word", "a question that nobody asked", PROBE}
    assert new == {"a passage that came later"}, "an update sends new texts"
    assert not any(SECRET.encode() in file.read_bytes() for file in root.rglob("*") if file.is_file())


@pytest.mark.slow
def test_a_run_of_given_vectors(
    tiny_dataset: Dataset,
    vectors: dict[str, np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, root = write_beir(tiny_dataset, tmp_path / "data"), tmp_path / "root"
    write_vectors(tmp_path / "given", tiny_dataset, "npy", vectors)
    ladder = ["run", "--dataset", str(data), "--root", str(root), "--until", "labels", *FAST]
    assert call(*ladder, "--vectors", str(tmp_path / "given")) == 0
    assert "labels, after" in capsys.readouterr().out
    bundle = str(labelled_bundle(root / "latest"))
    assert call("search", "a question", "--bundle", bundle) == 2
    assert "has no vector of this text: name an encoder" in capsys.readouterr().err
