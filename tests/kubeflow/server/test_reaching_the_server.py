"""Addresses, tokens, login pages and namespaces: what stands between `gnn-encoder submit` and the server."""

from pathlib import Path

import pytest
from command_line import call
from kfp_api import EXAMPLE, KfpServer
from loopback import free_port
from private_ca import write_certificates
from submitting import submit

from gnn_encoder.kubeflow import server as kubeflow_server


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_wrong_token(token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GNN_ENCODER_KFP_TOKEN", token)
    with KfpServer(token="right") as server:
        assert submit(server.url) == 2
        output = capsys.readouterr()
        assert output.out == "" and output.err.count("\n") == 1
        assert (
            "does not let us in" in output.err and "set GNN_ENCODER_KFP_TOKEN, or KF_PIPELINES_SA_TOKEN" in output.err
        )
        assert "wrong" not in output.err.replace("is wrong", "")
        monkeypatch.setenv("GNN_ENCODER_KFP_TOKEN", "right")
        assert submit(server.url) == 0
        assert "right" not in capsys.readouterr().out
        assert server.problems == []


def test_a_token_with_white_space_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with KfpServer(token="right") as server:
        for token in ("right\n", " right\r\n"):  # as a CI's secret has it
            monkeypatch.setenv("GNN_ENCODER_KFP_TOKEN", token)
            assert submit(server.url, "--wait") == 0


@pytest.mark.parametrize(
    "token", ["hunter\N{LATIN SMALL LETTER E WITH ACUTE}22", "hunter\n22", "hunter 22", "\ufeffhunter22"]
)
@pytest.mark.parametrize("filed", [False, True])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(
    token: str, filed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variable = "GNN_ENCODER_KFP_TOKEN"
    if filed:
        (tmp_path / "token").write_text(token, "utf-8")
        variable, token = "KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token")
    monkeypatch.setenv(variable, token)
    with KfpServer() as server:
        assert submit(server.url) == 2
        assert server.requests == []
    shown = capsys.readouterr()
    assert "hunter" not in shown.out + shown.err and shown.err.count("\n") == 1
    assert (
        f"the token from {str(tmp_path / 'token') if filed else variable} has white space or a character" in shown.err
    )


def test_a_token_in_a_file_is_read_for_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(file))
    with KfpServer(token="first") as server:
        assert submit(server.url) == 2
        error = capsys.readouterr().err
        assert "cannot read the token that KF_PIPELINES_SA_TOKEN_PATH names: " in error and error.count("\n") == 1
        file.write_text("first\n")

        def renew(arguments: dict[str, str]) -> None:
            server.token = "second"  # from the next request on
            file.write_text("second\n")

        server.execute = renew
        assert submit(server.url, "--wait") == 0
        # The variable that holds a token itself comes first.
        monkeypatch.setenv("GNN_ENCODER_KFP_TOKEN", "first")
        assert submit(server.url) == 2


def test_the_path_in_an_address(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with KfpServer(prefix="/pipeline") as server:
        assert submit(f"{server.url}/pipeline/") == 0
        assert f"{server.url}/pipeline/#/runs/details/run-0" in capsys.readouterr().out
        assert submit(server.url) == 2
        assert "does not have it: Not Found; check --host, and the path in it" in capsys.readouterr().err
        monkeypatch.setenv("KF_PIPELINES_UI_ENDPOINT", "https://pages.example.com")
        assert submit(f"{server.url}/pipeline") == 0
        assert "https://pages.example.com/#/runs/details/run-1" in capsys.readouterr().out
        assert server.problems == []


def test_a_login_page_is_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with KfpServer(login_page=True) as server:
        assert submit(server.url) == 2
        assert call("runs", "--host", server.url) == 2
    error = capsys.readouterr().err
    assert error.count("perhaps with a page to log in: set GNN_ENCODER_KFP_TOKEN") == 2


@pytest.mark.parametrize("variable", kubeflow_server.AUTHORITIES)
def test_a_server_whose_certificate_a_private_authority_signed(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, certificate = write_certificates(tmp_path)
    for name in kubeflow_server.AUTHORITIES:
        monkeypatch.delenv(name, raising=False)
    with KfpServer(certificate=certificate) as server:
        (tmp_path / "no.pem").write_text("no certificate")
        for wrong in ("", str(tmp_path / "nothing.pem"), str(tmp_path / "no.pem")):
            monkeypatch.setenv(variable, wrong)
            assert submit(server.url) == 2
            error = capsys.readouterr().err
            assert error.count("\n") == 1 and "set SSL_CERT_FILE to a PEM file with the certificate" in error
            assert server.requests == []
        monkeypatch.setenv(variable, str(authority))
        assert submit(server.url, "--wait") == 0
        assert server.problems == [] and len(server.runs) == 1


@pytest.mark.slow
def test_several_users_want_a_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    with KfpServer(multi_user=True) as server:
        assert submit(server.url) == 2
        assert "say `namespace` in the cluster file" in capsys.readouterr().err
        assert submit(server.url, "--cluster", str(EXAMPLE)) == 0
        assert server.experiments[0]["namespace"] == "retrieval"
        assert server.problems == []


@pytest.mark.parametrize(
    "host",
    ["http://127.0.0.1:{port}", "https://no-such-host.invalid", "kubeflow", "http://me:hunter22@a", "http://[::1", ""],
)
def test_nobody_there(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit(host.format(port=free_port())) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and "--host" in output.err
    assert "hunter22" not in output.err
