"""The streamed JSON array equals json.loads, however it is cut."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnn_encoder.data import json_array
from gnn_encoder.data.json_array import read_array
from gnn_encoder.data.validation import Kind, Problems

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 0, 3]), st.booleans(), st.integers(1, 40))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_equals_json_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list, indent: int | None, ascii_only: bool, chunk: int
) -> None:
    monkeypatch.setattr(json_array, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(json_array, "LONGEST_LITERAL", 64)
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    if "\\ud" in text:
        return  # half surrogates; those of pairs are covered by the other branch
    (tmp_path / "a.json").write_bytes(text.encode())
    problems = Problems()
    assert [value for _, value in read_array(tmp_path / "a.json", problems)] == values
    assert problems.all() == []


def test_lines_are_those_where_elements_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "CHUNK_BYTES", 5)
    (tmp_path / "a.json").write_text('[\n{"a":\n1},\n\n2,3\n]\n')
    assert [line for line, _ in read_array(tmp_path / "a.json", Problems())] == [2, 5, 5]


@pytest.mark.parametrize(
    ("text", "line", "read"),
    [
        ('["' + "9" * 6000 + '",\n' + "9" * 6000 + "]", 2, 1),
        ("[1,\n" + "[" * 5000, 2, 1),
        ("[1]\n[2]", 2, 1),
        ("{}", 1, 0),
        ("", 1, 0),
        ("[1,\n2,\n3", 3, 3),
        ("[1,\n2 3]", 2, 2),
        ('[1,\n{"a" 1}]', 2, 1),
        ('[1,\n"x', 2, 1),
    ],
)
def test_what_is_wrong_has_its_line(tmp_path: Path, text: str, line: int, read: int) -> None:
    (tmp_path / "a.json").write_text(text)
    problems = Problems()
    assert len(list(read_array(tmp_path / "a.json", problems))) == read
    (problem,) = problems.all()
    assert problem.kind is Kind.UNREADABLE and problem.places[0].startswith(f"a.json line {line}: bad JSON")


@pytest.mark.parametrize("chunk", [8, 1 << 20])
def test_bytes_that_are_not_utf8_have_the_line_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(json_array, "CHUNK_BYTES", chunk)
    (tmp_path / "a.json").write_bytes(b'["1",\n"2",\n"3 \xff"]')
    problems = Problems()
    list(read_array(tmp_path / "a.json", problems))
    (problem,) = problems.all()
    assert problem.kind is Kind.UNREADABLE
    assert problem.places == [f"a.json line {1 if chunk > 8 else 2}: not UTF-8: byte 0xff at or after it"]


def test_an_element_has_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CHUNK_BYTES", 10), ("LONGEST_LINE", 100)):
        monkeypatch.setattr(json_array, name, value)
    (tmp_path / "a.json").write_text(json.dumps(["a" * 90, "b" * 1000]))
    problems = Problems()
    assert [value for _, value in read_array(tmp_path / "a.json", problems)] == ["a" * 90]
    assert "more than 100 characters" in problems.all()[0].places[0]


def test_a_wrong_element_does_not_pull_in_the_rest_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "CHUNK_BYTES", 100)
    (tmp_path / "a.json").write_text('[{"a" 1},' + "1," * 100_000 + "1]")
    taken: list[int] = []
    more = json_array._Buffer._more
    monkeypatch.setattr(json_array._Buffer, "_more", lambda self: taken.append(1) or more(self))
    assert list(read_array(tmp_path / "a.json", Problems())) == []
    assert len(taken) == 1
