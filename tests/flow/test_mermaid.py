"""Flowcharts of graphs: what is one box, which arrows are left out, and the picture of docs/concepts/graph.md.

After a wanted change of the quickstart's graph: `python tests/flow/test_mermaid.py` writes the picture again.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from gnn_encoder.flow import mermaid as drawing
from gnn_encoder.flow.graph import Given, Graph, Node
from gnn_encoder.flow.mermaid import boxes, mermaid
from gnn_encoder.pipelines.ablation import ablation
from gnn_encoder.pipelines.rerank import rerank
from gnn_encoder.pipelines.train import train
from gnn_encoder.pipelines.update import update
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.foundation import Bm25Retrieve, Ingest
from gnn_encoder.settings.outcome import Fuse, Rank
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.settings.reranking_systems import SYSTEMS
from gnn_encoder.settings.studies import STUDIES, variants

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "graph.md"
MODELS = {name: Given(f"/models/{name}") for name in ("dual_encoder", "cross_encoder", "gnn_encoder")}
SHARDS = ("bm25_retrieve.shards=3", "score_candidates.shards=2", "encode_corpus.shards=2")


def graphs() -> dict[str, Graph]:
    settings = load_settings("quickstart")
    return {
        "train": train(settings),
        "tasks that share a step": train(load_settings("quickstart", SHARDS)),
        "update": update(settings, MODELS),
        "ablation": ablation(settings, variants(settings, STUDIES, ()), 2),
        "rerank": rerank(settings, list(SYSTEMS), "", Given("/runs/bundle")),
    }


def above(chart: str) -> dict[str, set[str]]:
    """Box → the boxes from which a way of arrows leads to it; fails for a circle."""
    before: dict[str, set[str]] = {}
    for source, target in re.findall(r"^  (\w+) -\S+ ?(?:[\w, ]+\| )?(\w+)$", chart, flags=re.MULTILINE):
        before.setdefault(target, set()).add(source)

    def ways(box: str, below: tuple[str, ...] = ()) -> set[str]:
        assert box not in below, f"{box} depends on itself"
        return {other for source in before.get(box, ()) for other in (source, *ways(source, (*below, box)))}

    return {box: ways(box) for box in re.findall(r"^  (\w+)(?:[\[(]|$)", chart, flags=re.MULTILINE)}


def sources(node: Node) -> list[Node | Given]:
    return [*node.before(), *(artifact for _, artifact in node.artifacts() if isinstance(artifact, Given))]


@pytest.mark.parametrize("name", graphs())
def test_a_chart_has_every_dependence_and_no_arrow_too_many(name: str) -> None:
    graph = graphs()[name]
    chart, box_of = mermaid(graph), boxes(graph)
    ways = above(chart)
    assert set(ways) == set(box_of.values())
    for node in graph.nodes:
        assert {box_of[source] for source in sources(node)} <= ways[box_of[node]], node.title
    arrows = [line for line in chart.splitlines() if re.search(r" -(->|\.->)", line)]
    for arrow in arrows:
        assert above(chart.replace(f"{arrow}\n", "").removesuffix(f"\n{arrow}")) != ways, f"{arrow} says nothing"


def test_calls_of_one_step_are_one_box_unless_one_depends_on_another() -> None:
    graph = train(load_settings("quickstart"))
    chart = mermaid(graph)
    rankings = len(graph.of("rank"))
    assert rankings > 1 and f'  rank(["rank<br/>× {rankings}"])\n' in chart
    assert '  train_dual_encoder_2["train_dual_encoder<br/>Dual encoder, converged"]\n' in chart
    assert "  train_dual_encoder -->|dual_encoder| train_dual_encoder_2\n" in chart
    assert "  ingest\n" in chart and "  report -.-> promote" in chart, (
        "promote waits for the page, and does not read it"
    )
    assert "ingest -->|dataset| promote" not in chart


def test_boxes_of_several_steps_do_not_depend_on_each_other() -> None:
    """Neither of two rankings depends on the other, nor of two fusions; but one of each is before one of the others."""
    graph, data = Graph("crossed"), Given("/data")
    first = graph.add("rank", Rank(system="A"), "A", dataset=data)
    graph.add("fuse", Fuse(), "A", dataset=data, lexical_run=first.output, dense_run=first.output)
    alone = graph.add("fuse", Fuse(), "B", dataset=data, lexical_run=Given("/l"), dense_run=Given("/d"))
    graph.add("rank", Rank(system="B"), "B", [alone], dataset=data)
    box_of = boxes(graph)
    assert [box_of[node] for node in graph.nodes] == ["rank", "fuse", "fuse", "rank_2"]
    above(mermaid(graph))


def test_a_circle_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the tests above: without the check of the boxes, the two trainings are one box."""
    monkeypatch.setattr(drawing, "_is_acyclic", lambda _: True)
    graph = train(load_settings("quickstart"))
    assert len({boxes(graph)[node] for node in graph.of("train_dual_encoder")}) == 1
    with pytest.raises(Exception, match="cycle"):
        mermaid(graph)


def test_what_exists_before_the_run_is_a_cylinder_and_shared_work_has_a_number() -> None:
    chart = mermaid(update(load_settings("quickstart"), MODELS))
    assert '  given_1[("dual_encoder")]\n' in chart and "  given_1 -->|dual_encoder| build_graph\n" in chart
    graph = Graph("shared")
    dataset = graph.add("ingest", Ingest()).output
    index = graph.add("index_bm25", IndexBm25(), dataset=dataset).output
    graph.parallel("bm25_retrieve", Bm25Retrieve(shards=4), dataset=dataset, bm25_index=index)
    assert mermaid(graph).splitlines() == [
        "flowchart TD",
        "  ingest",
        "  index_bm25",
        '  bm25_retrieve(["bm25_retrieve<br/>× 4"])',
        '  merge["merge<br/>bm25_retrieve"]',
        "  ingest -->|dataset| index_bm25",
        "  index_bm25 -->|bm25_index| bm25_retrieve",
        "  bm25_retrieve -->|bm25_run| merge",
    ]


def test_the_names_of_users_cannot_change_the_chart() -> None:
    graph = Graph("named")
    graph.add("rank", Rank(system="A"), 'a"]; b --> c <b> #1 `k` 川', dataset=Given('/x/"y'))
    assert mermaid(graph).splitlines()[1:3] == [
        '  given_1[("#34;y")]',
        '  rank["rank<br/>a#34;#93;; b --#62; c #60;b#62; #35;1 #96;k#96; 川"]',
    ]


def pictures(text: str) -> list[str]:
    return re.findall(r"^```mermaid\n(.*?)\n```$", text, flags=re.MULTILINE | re.DOTALL)


def test_the_page_has_the_chart_of_the_quickstart() -> None:
    (picture,) = pictures(PAGE.read_text("utf-8"))
    assert picture == mermaid(train(load_settings("quickstart"))), (
        f"python {Path(__file__).name} writes it into {PAGE.name}"
    )
    other: Mapping[str, Graph] = graphs()
    assert mermaid(other["tasks that share a step"]) != mermaid(other["train"]), "the control: settings change charts"


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    PAGE.write_text(text.replace(pictures(text)[0], mermaid(train(load_settings("quickstart")))), "utf-8")
