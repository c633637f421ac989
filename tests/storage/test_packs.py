"""What is packed comes out as it was, and nothing else does."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from gnn_encoder.errors import UserError
from gnn_encoder.storage.listing import Stored
from gnn_encoder.storage.packs import FULL, MANY, SMALL, by_pack, pack, plan_packs, unpack


@example([0] * MANY)
@given(some.lists(some.integers(0, 2 * SMALL), max_size=4 * MANY))
def test_every_small_file_of_many_is_in_one_pack_that_is_not_too_full(lengths: list[int]) -> None:
    sizes = {f"{number}": length for number, length in enumerate(lengths)}
    packs = plan_packs(sizes)
    small = [name for name, length in sizes.items() if length <= SMALL]
    assert [name for names in packs.values() for name in names] == (small if len(small) >= MANY else [])
    assert all(names and sum(sizes[name] for name in names) <= FULL for names in packs.values())


def test_there_and_back_and_what_is_not_as_it_was_sent_is_refused(tmp_path: Path) -> None:
    files = {}
    for number, body in enumerate((b"one", b"", b"three")):
        (tmp_path / f"{number}").write_bytes(body)
        files[f"sub/{number}"] = tmp_path / f"{number}"
    content, listing = pack("p", files)
    assert by_pack({**listing, "alone": Stored(3)}, ["alone", "sub/2"]) == {"p": {"sub/2": listing["sub/2"]}}
    unpack(content, listing, tmp_path / "out")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files} == {
        n: p.read_bytes() for n, p in files.items()
    }
    with pytest.raises(UserError, match="sub/2 in it is not what was sent"):
        unpack(content[:-1], listing, tmp_path / "cut")
    assert not (tmp_path / "cut" / "sub" / "2").exists()
