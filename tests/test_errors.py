"""What an error may show."""

import pytest

from gnn_encoder.errors import without_password


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
