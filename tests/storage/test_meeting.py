"""Tests `storage.meeting` in a folder; `runs.nodes` is tested with both kinds of store."""

import subprocess
import sys
import time
from pathlib import Path

from gnn_encoder.storage.meeting import Meeting

LEADER = """
from gnn_encoder.storage.meeting import Meeting
while True:
    Meeting({root!r}, "key").announce("here")
    Meeting({root!r}, "key").close("here")
"""


def test_a_text_that_is_removed_during_a_read_is_none(tmp_path: Path) -> None:
    package, meeting = (
        str(Path(sys.modules[Meeting.__module__].__file__ or "").parents[2]),
        Meeting(str(tmp_path), "key"),
    )
    leader = subprocess.Popen([sys.executable, "-c", LEADER.format(root=str(tmp_path))], env={"PYTHONPATH": package})
    try:
        while not meeting.read() and leader.poll() is None:
            time.sleep(0.01)
        found = {meeting.read() for _ in range(50_000)}
    finally:
        leader.kill()
        leader.wait()
    assert found <= {"", "here"}
