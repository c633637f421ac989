"""A caller gets nothing of passages that others may see: in hits, explanations, facets, counts, errors and figures."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jwt
import numpy as np
import pytest
from command_line import call
from conftest import TOPICS
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from http_server import JSON, Server, serving
from random_filters import fits
from rights_world import FIELD, GROUPS, KEY, MARKER, RIGHTS, Checked, Corpus, token_of, write_bundles

from gnn_encoder import Retriever
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.filters import Filters, Selection
from gnn_encoder.serving.following import Followed
from gnn_encoder.serving.rights import Rights, rights_of
from gnn_encoder.serving.schema import Refused

CORPUS = Corpus.random()
MARKED = re.compile(r"\[(mark\d+)\]")
WRONG: tuple[dict[str, Any], ...] = ({FIELD: "team1"}, {"prodcut": "prod1"}, {"year": "prod1"}, {"year": {"~": 1}})


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> dict[str, Path]:
    return write_bundles(CORPUS, tmp_path_factory.mktemp("rights"), tiny_backbone)


@pytest.fixture(scope="module")
def servers(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    labels = tmp_path_factory.mktemp("labels")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(serving(path, labels=labels / f"{name}.jsonl", rights=RIGHTS))
            for name, path in bundles.items()
        }


class Caller:
    """Sends random requests as a random caller, and checks what comes back."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator
        self.groups = [group for group in GROUPS if generator.random() < 0.3]
        self.checked = Checked(CORPUS, self.groups)
        self.headers = JSON | {"Authorization": f"Bearer {token_of(self.groups)}"}

    def asks(self, server: Server) -> str:
        """One request; returns its kind."""
        kind = str(self.generator.choice(["search", "explain", "facets", "about", "feedback", "wrong", "stranger"]))
        getattr(self, kind)(server)
        return kind

    def send(self, server: Server, path: str, body: Any = None) -> tuple[int, bytes]:
        method, sent = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
        status, _, answer = server.send(method, path, sent, self.headers)
        return status, answer

    def question(self) -> str:
        words = [str(self.generator.choice(TOPICS)), f"mark{self.generator.integers(40)}", "what is", "ask3"]
        return " ".join(self.generator.permutation(words)[: self.generator.integers(1, 4)].tolist())

    def filter(self) -> dict[str, Any] | None:
        product = [f"prod{number}" for number in self.generator.integers(12, size=5)]
        some = {"product": product, "year": {">=": int(self.generator.integers(1999, 2004))}}
        names = [name for name in some if self.generator.random() < 0.4]
        return {name: some[name] for name in names} or None

    def search(self, server: Server, **more: Any) -> None:
        question, wanted = self.question(), self.filter()
        body = {"questions": question, "k": int(self.generator.integers(1, 40)), "filter": wanted} | more
        status, answer = self.send(server, "/search", body)
        assert status == 200, answer
        for hit in self.checked.answer(answer, question)["results"][0]["hits"]:
            record = CORPUS.records[int(hit["passage_id"].removeprefix("mark"))]
            assert fits(record, wanted or {})

    def explain(self, server: Server) -> None:
        has_reranker = server.followed.current.retriever.bundle.reranker_path is not None
        self.search(server, explain=True, rerank=has_reranker and bool(self.generator.random() < 0.7))

    def facets(self, server: Server) -> None:
        wanted = self.filter()
        status, body = self.send(server, "/facets", {"filter": wanted})
        inside = [CORPUS.records[row] for row in self.checked.rows if fits(CORPUS.records[row], wanted or {})]
        answer = self.checked.answer(body)
        assert status == 200 and answer["passages"] == len(inside)
        counts = {facet["value"]: facet["passages"] for facet in answer["facets"].get("product", [])}
        assert counts == Counter(record["product"] for record in inside) and FIELD not in answer["facets"]

    def about(self, server: Server) -> None:
        status, body = self.send(server, "/about")
        assert status == 200 and self.checked.answer(body)["passages"] == len(self.checked.rows)

    def feedback(self, server: Server) -> None:
        row = int(self.generator.integers(40))
        status, body = self.send(server, "/feedback", {"question": "what is this", "passage_id": f"mark{row}"})
        _, unknown = self.send(server, "/feedback", {"question": "what is this", "passage_id": "another"})
        assert (status == 200) == (row in self.checked.rows)
        assert json.loads(body) == {"labels": None} if status == 200 else body == unknown
        self.checked.answer(body)

    def wrong(self, server: Server) -> None:
        wanted = WRONG[self.generator.integers(len(WRONG))]
        path = ("/search", "/facets")[self.generator.integers(2)]
        body = {"filter": wanted} | ({"questions": self.question()} if path == "/search" else {})
        status, answer = self.send(server, path, body)
        assert status == 422 and "filter: " in json.loads(answer)["detail"]
        self.checked.answer(answer, json.dumps(wanted))

    def stranger(self, server: Server) -> None:
        others = [
            *({}, {"Authorization": f"Bearer {token_of(GROUPS)}x"}, {"X-Groups": ",".join(GROUPS)}),
            {"Authorization": f"Bearer {token_of(GROUPS, exp=1)}"},
            {"Authorization": f"Bearer {jwt.encode({'groups': GROUPS}, KEY, 'HS256')}"},
            {"Authorization": f"Bearer {jwt.encode({'groups': GROUPS, 'exp': 2**33}, None, 'none')}"},
            {"Authorization": f"Bearer {jwt.encode({'groups': GROUPS, 'exp': 2**33}, 'x' * 40, 'HS256')}"},
        ]
        headers = JSON | others[self.generator.integers(len(others))]
        for method, path, body in (("POST", "/search", b'{"questions": "mark1"}'), ("GET", "/about", None)):
            status, _, answer = server.send(method, path, body, headers)
            assert status == 401
            Checked(CORPUS, []).answer(answer)


def ask(servers: dict[str, Server], requests: int, seed: int = 0) -> Counter[str]:
    """Sends requests of random callers to each server in turn, and checks the figures; returns how many of a kind."""
    generator, kinds = np.random.default_rng(seed), Counter[str]()
    for number in range(requests):
        if number % 5 == 0:
            caller = Caller(generator)
        kinds[caller.asks(list(servers.values())[number % len(servers)])] += 1
    for server in servers.values():
        for path in ("/metrics", "/health/ready", "/openapi.json", "/"):
            status, _, body = server.send("GET", path)
            assert status == 200 and not MARKER.search(body.decode())
    return kinds


@pytest.mark.parametrize("requests", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_nothing_of_others(servers: dict[str, Server], requests: int) -> None:
    kinds = ask(servers, requests)
    assert len(kinds) == 7 and min(kinds.values()) > requests / 14


def test_control_a_filter_without_rights_is_noticed(
    servers: dict[str, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Filters.select
    monkeypatch.setattr(Filters, "select", lambda self, wanted, rights=None: real(self, wanted or {}))
    with pytest.raises(AssertionError):
        ask(servers, 100)


@pytest.mark.parametrize("name", ["sum", "max", "softmax", "linear", "graph", "document"])
def test_control_an_explanation_that_names_all_is_noticed(
    servers: dict[str, Server], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Filters._select

    def forgets(self: Filters, wanted: str, rights: str) -> Selection:
        return Selection(real(self, wanted, rights).mask)

    monkeypatch.setattr(Filters, "_select", forgets)
    filters = servers[name].followed.current.retriever.filters
    monkeypatch.setattr(filters, "_selected", filters._select)
    generator = np.random.default_rng(0)
    with pytest.raises(AssertionError, match="a caller of"):
        for _ in range(60):
            Caller(generator).explain(servers[name])


def test_explanations_still_name_what_the_caller_may_see(bundles: dict[str, Path]) -> None:
    for name in ("sum", "max", "softmax", "clusters", "linear", "graph"):
        retriever, named, parts = Retriever.load(bundles[name]), set[str](), 0
        for number in range(12):
            for explained in retriever.explain(f"what is ask{number}", 20, rights={FIELD: GROUPS[:3]}):
                if explained.graph:
                    named |= {influence.query_id for influence in explained.graph.why.influences}
                    continue
                parts += 1
                sources = " ".join(part.source for part in explained.parts)
                named |= {
                    word for word in sources.replace("[", " ").replace("]", " ").split() if word.startswith("ask")
                }
                total = sum(part.amount for part in explained.parts)
                assert total == pytest.approx(explained.hit.score, abs=1e-3), name
        assert named and (parts or name == "graph"), name
        assert named & Checked(CORPUS, GROUPS[:3]).named


def test_a_re_ranker_still_names_what_the_caller_may_see(bundles: dict[str, Path]) -> None:
    rights, seen = {FIELD: GROUPS[:3]}, Checked(CORPUS, GROUPS[:3]).named
    explained = Retriever.load(bundles["document"]).explain("what is ask3", 20, rerank=True, rights=rights)
    around = [part.source for one in explained for part in one.parts if "context" in part.source]
    assert {marker for source in around for marker in MARKER.findall(source)} & seen and "the rest" in str(around)


def test_everything_is_as_before_for_a_caller_of_all_groups(bundles: dict[str, Path]) -> None:
    grouped = {f"mark{row}" for row in CORPUS.seen(GROUPS)}
    for name, path in bundles.items():
        retriever, fuse = Retriever.load(path), None if name == "words" else False
        for question in ("what is this mark3", "river"):
            every = [hit for hit in retriever.search(question, 40, fuse=fuse) if hit.passage_id in grouped]
            mine = retriever.search(question, 40, fuse=fuse, rights={FIELD: GROUPS})
            assert {hit.passage_id for hit in mine} == {hit.passage_id for hit in every}


def test_a_filter_without_rights(bundles: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {"product": ["prod1", "prod2", "prod3"], FIELD: {"!=": None}}
    inside = {f"mark{row}" for row, record in enumerate(CORPUS.records) if fits(record, wanted)}
    retriever = Retriever.load(bundles["both"])
    expected = [hit.passage_id for hit in retriever.search("the river", 40, filter=wanted)]
    assert set(expected) == inside and len(inside) > 3
    assert {one.hit.passage_id for one in retriever.explain("the river", 40, filter=wanted)} == inside
    with serving(bundles["both"]) as server:
        status, answer = server.search(questions=["the river", "a sea"], k=40, filter=wanted)
        assert status == 200 and [hit["passage_id"] for hit in answer["results"][0]["hits"]] == expected
        status, answer = server.search(questions="the river", filter={"colour": "red"})
        assert status == 422 and answer["detail"].startswith("filter: the passages have no field 'colour', but groups")
        status, _, body = server.send("POST", "/facets", json.dumps({"filter": wanted}).encode(), JSON)
        assert json.loads(body)["passages"] == len(inside) and FIELD in json.loads(body)["facets"]
    where = ("--bundle", str(bundles["both"]), "-k", "40", "--filter")
    assert call("search", "the river", *where, json.dumps(wanted)) == 0
    assert MARKED.findall(capsys.readouterr().out) == expected
    assert call("search", "the river", *where, '{"product": 7}') == 2
    assert "filter: product has values of the type text, and 7 is none" in capsys.readouterr().err
    assert call("search", "the river", *where, '{"product": "none"}') == 0
    assert "no hit" in capsys.readouterr().out


def test_a_bundle_without_the_field_is_not_served(bundles: dict[str, Path]) -> None:
    for field, said in (("nothing", "no field 'nothing' with texts"), ("year", "no field 'year' with texts")):
        with pytest.raises(UserError, match=said):
            Followed(str(bundles["words"]), Path("none"), field)


def test_groups_of_tokens_and_headers() -> None:
    def sent(*pairs: tuple[str, str]) -> list[tuple[bytes, bytes]]:
        return [(name.encode(), value.encode()) for name, value in pairs]

    bearer = ("authorization", f"Bearer {token_of(['a', 'b'])}")
    assert RIGHTS.of(sent(bearer)) == {FIELD: ["a", "b"]}
    assert RIGHTS.of(sent(("authorization", f"bearer {token_of('a')}"))) == {FIELD: ["a"]}  # type: ignore[arg-type]
    for nobody in ("", [""]):  # or whoever has no group would see the passages that have none
        assert RIGHTS.of(sent(("authorization", f"Bearer {token_of(nobody)}"))) == {FIELD: []}
    behind = Rights(FIELD, header="X-Groups")
    assert behind.of(sent(("x-groups", " a, bä ,,"))) == {FIELD: ["a", "bä"]}
    assert behind.of(sent(("x-groups", ""))) == {FIELD: []}
    tokens = [
        token_of(7),
        token_of(["a", 1]),
        token_of(["a", "\ud800"]),
        token_of(["a"], aud="us"),
        token_of(["a"], nbf=2**32),
    ]
    wrong = [sent(("authorization", f"Bearer {token}")) for token in tokens]
    wrong += [
        sent(),
        sent(bearer, bearer),
        sent(("authorization", token_of(["a"]))),
        sent(("authorization", "Basic x")),
    ]
    for headers in wrong:
        with pytest.raises(Refused) as refused:
            RIGHTS.of(headers)
        assert refused.value.status == 401
    for headers in (sent(), sent(("x-groups", "a"), ("x-groups", "b")), sent(bearer)):
        with pytest.raises(Refused, match="must be there once, set by the proxy"):
            behind.of(headers)
    ours = Rights(FIELD, KEY, "roles", "us")
    assert ours.of(sent(("authorization", f"Bearer {token_of([], roles=['r'], aud='us')}"))) == {FIELD: ["r"]}


@pytest.mark.parametrize("kind", ["RS256", "ES256", "EdDSA"])
def test_tokens_by_a_public_key(kind: str) -> None:
    private: Any = {
        "RS256": lambda: rsa.generate_private_key(65537, 2048),
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
    }[kind]()
    pem = serialization.PublicFormat.SubjectPublicKeyInfo
    public = private.public_key().public_bytes(serialization.Encoding.PEM, pem).decode()
    rights, claims = Rights(FIELD, public), {"groups": ["a"], "exp": 2**33}
    good = jwt.encode(claims, private, kind)
    assert rights.of([(b"authorization", f"Bearer {good}".encode())]) == {FIELD: ["a"]}
    head, body, _ = jwt.encode(claims, "x" * 64, "HS256").split(".")
    by_public = jwt.api_jws.PyJWS().get_algorithm_by_name("HS256")
    forged = by_public.sign(f"{head}.{body}".encode(), public.encode())
    signature = jwt.utils.base64url_encode(forged).decode()
    with pytest.raises(Refused):
        rights.of([(b"authorization", f"Bearer {head}.{body}.{signature}".encode())])
    secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    with pytest.raises(UserError, match="no public key in PEM"):
        Rights(FIELD, private.private_bytes(serialization.Encoding.PEM, *secret).decode())
    bare = "".join(public.strip().splitlines()[1:-1])
    for not_pem in (bare, f"Bag Attributes\n{public}", '{"kty": "RSA", "n": "' + "x" * 40, f"ssh-rsa {bare}"):
        with pytest.raises(UserError, match="is a public key, but not in PEM"):
            Rights(FIELD, not_pem)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"header": "X-Groups"}, "need --rights FIELD"),
        ({"key": "k" * 40}, "need --rights FIELD"),
        ({"field": "f", "header": "X", "audience": "us", "token": "t"}, "--rights-audience is about signed tokens"),
        ({"field": "f"}, "needs the key of signed tokens in GNN_ENCODER_RIGHTS_KEY"),
        ({"field": "f", "key": "k" * 40, "header": "X"}, "leave one of them out"),
        ({"field": "f", "key": "k" * 40, "token": "t"}, "unset GNN_ENCODER_TOKEN"),
        ({"field": "f", "key": "short"}, "fewer than 32 bytes"),
        ({"field": "f", "header": "X"}, "anyone who reaches the server could set X"),
    ],
)
def test_options_that_would_not_limit_callers_are_refused(options: dict[str, Any], said: str) -> None:
    defaults = {"field": None, "key": "", "claim": "groups", "audience": None, "header": "", "token": ""}
    with pytest.raises(UserError, match=said):
        rights_of(**{**defaults, "trusts_proxy": False, **options})


def test_options_that_limit_callers() -> None:
    assert rights_of(None, "", "groups", None, "", "", False) is None
    assert rights_of("f", "k" * 40, "groups", None, "", "", False) == Rights("f", "k" * 40)
    for token, trusts in (("t", False), ("", True)):
        assert rights_of("f", "", "groups", None, "X", token, trusts) == Rights("f", header="X")
