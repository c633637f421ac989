"""What a terminal is shown."""

import pytest

from gnn_encoder.errors import CONTROL, printable, without_password


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@db:5432/mlflow", "postgresql://db:5432/mlflow"),
        ("postgresql://me:se/cret@db:5432/mlflow", "postgresql://db:5432/mlflow"),
        ("http://me:my secret@host/x", "http://host/x"),
        ("cannot reach http://me:my secret pass@host:5000: 'refused'", "cannot reach http://host:5000: 'refused'"),
        ("http://h/x?token=secret&a=1", "http://h/x?token=…&a=1"),
        ("http://h/x?a=1&api_key=secret", "http://h/x?a=1&api_key=…"),
        ("http://h/x?X-Amz-Signature=secret&access_token=b", "http://h/x?X-Amz-Signature=…&access_token=…"),
        ("http://host:5000 failed for models:/m@champion", "http://host:5000 failed for models:/m@champion"),
        ("https://token@host/path", "https://host/path"),
        ("http://a:80,http://me:pw@b/x", "http://a:80,http://b/x"),
        ("http://host:5000/models/m@v2", "http://host:5000/models/m@v2"),
        ("docker://registry:5000/team/image@sha256:abc", "docker://registry:5000/team/image@sha256:abc"),
        ('{"url":"http://me:p/w@h/x","mail":"a@b.c"}', '{"url":"http://h/x","mail":"a@b.c"}'),
        ("postgresql://db/mlflow?user=me&password=secret&sslmode=require", "postgresql://db/mlflow?user=me&password=…&sslmode=require"),
        ("http://host:5000 and a@b", "http://host:5000 and a@b"),
        ("s3://bucket/key and http://host:5000/path", "s3://bucket/key and http://host:5000/path"),
    ],
)  # fmt: skip
def test_passwords_are_taken_out(text: str, shown: str) -> None:
    assert without_password(text) == shown


def test_no_character_that_a_terminal_obeys_is_shown() -> None:
    shown = printable("a\x1b[31mred\x9b2J\x07\r\nb\u202egnp.exe\u2066 \t\x85 c")
    assert shown == "a [31mred 2J b gnp.exe c"
    assert printable("Ünïcode, 北京, 🙂👩‍🔬 \u200e") == "Ünïcode, 北京, 🙂👩‍🔬 \u200e"
    assert not any(chr(number).translate(CONTROL).strip() for number in (*range(32), *range(127, 160)))
