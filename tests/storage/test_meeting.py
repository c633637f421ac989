"""Tests `storage.meeting` in a folder; `runs.nodes` is tested with both kinds of store."""

import subprocess
import sys
import time
from pathlib import Path

from gnn_encoder.storage import meeting as module

LEADER = """
import sys
from gnn_encoder.storage.meeting import Meeting
meeting = Meeting(sys.argv[1], "key")
while True:
    meeting.announce("here")
    meeting.close("here")
"""


def test_a_text_that_is_removed_during_a_read_is_none(tmp_path: Path) -> None:
    package, meeting = str(Path(module.__file__).parents[2]), module.Meeting(str(tmp_path), "key")
    leader = subprocess.Popen([sys.executable, "-c", LEADER, str(tmp_path)], env={"PYTHONPATH": package})
    try:
        while not meeting.read() and leader.poll() is None:
            time.sleep(0.01)
        found = {meeting.read() for _ in range(50_000)}
        assert leader.poll() is None, "the leader announced and closed all the time"
    finally:
        leader.kill()
        leader.wait()
    assert found <= {"", "here"}
