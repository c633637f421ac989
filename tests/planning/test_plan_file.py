"""A climb's plan is read as it was written."""

import math
from pathlib import Path

import pytest

from gnn_encoder.errors import UserError
from gnn_encoder.planning.plan_file import read_plan, write_plan
from gnn_encoder.settings.presets import read_yaml_file


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    tree = {"ingest": {"dataset": "3e-5", "query_field": "1_000"}, "train": {"lr": 3e-5}}  # two texts, one number
    write_plan(tmp_path / "plan.yaml", math.inf, tree, "labels", {"machine": "2 cores"}, {"tuning": 4.2})
    plan = read_plan(tmp_path / "plan.yaml")
    assert (plan.until, plan.seconds, plan.missing) == ("labels", {"tuning": 4}, "")
    assert read_yaml_file(plan.file) == tree


def test_a_plan_without_its_rung_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("ingest: {}\n", "utf-8")
    with pytest.raises(UserError, match="until: RUNG"):
        read_plan(tmp_path / "plan.yaml")
