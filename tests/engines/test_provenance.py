"""What makes a step run again, and what must not."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnn_encoder.engines import provenance
from gnn_encoder.flow.arguments import ORIGIN, StepArguments
from gnn_encoder.flow.declared import declared, step_names
from gnn_encoder.flow.graph import Node
from gnn_encoder.models.backbone_files import MINILM_SHA256
from gnn_encoder.pipelines.train import train
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import parse_settings

PACKAGE = Path(provenance.__file__).parents[1]
TRAINING = tuple(dict.fromkeys(node.step for node in train(Settings()).nodes))


def test_a_step_depends_on_what_it_imports_and_on_nothing_else() -> None:
    evaluate, _ = provenance.closure("gnn_encoder.steps.evaluate")
    train_gnn, packages = provenance.closure("gnn_encoder.steps.train_gnn")
    report, _ = provenance.closure("gnn_encoder.steps.report")
    assert "gnn_encoder.report.page" in report
    assert not {"gnn_encoder.report.page", "gnn_encoder.models", "gnn_encoder.inference"} & evaluate
    assert "gnn_encoder.report.page" not in train_gnn
    assert {"gnn_encoder.steps.train_gnn", "gnn_encoder.training", "gnn_encoder.models.gnn"} <= train_gnn
    assert "torch" in packages
    assert not {"gnn_encoder.tracking.mlflow_runs", "gnn_encoder.engines.local", "kfp"} & (train_gnn | packages)


@pytest.mark.parametrize("step", [name for name in step_names() if "processes" in declared(name).settings.model_fields])
def test_a_step_depends_on_what_its_processes_run(step: str) -> None:
    modules, _ = provenance.closure(f"gnn_encoder.steps.{step}")
    assert "gnn_encoder.engines.rank" in modules
    texts = (node for module in modules for node in ast.walk(ast.parse(provenance._source(module).read_bytes())))
    named = {node.value for node in texts if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    started = {name for name in named if name.startswith("gnn_encoder.") and provenance._find(name)}
    assert started <= modules
    assert "gnn_encoder.engines.rank" not in provenance.closure("gnn_encoder.steps.ingest")[0]


def test_a_stores_password_is_no_part_of_a_digest() -> None:
    first, other, elsewhere = (
        provenance.source_digests("promote", Settings().promote, f"http://{where}")
        for where in ("me:one@host", "me:two@host", "me:one@elsewhere")
    )
    assert first == other != elsewhere


def test_a_changed_file_of_word_vectors_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "glove.txt"
    settings = Settings().train_reranker.model_copy(update={"word_vectors": str(file)})

    def digest(text: str) -> str:
        file.write_text(text)
        return provenance.source_digests("train_reranker", settings)["word_vectors"]

    assert digest("river 1 2") == digest("river 1 2") != digest("river 1 3")


@pytest.mark.parametrize("step", step_names())
def test_no_step_imports_kfp_or_the_engine(step: str) -> None:
    modules, packages = provenance.closure(f"gnn_encoder.steps.{step}")
    assert "kfp" not in packages
    assert (
        not {
            "gnn_encoder.engines.local",
            "gnn_encoder.engines.local_run",
            "gnn_encoder.engines.pipelines",
            "gnn_encoder.cli.app",
        }
        & modules
    )


def test_every_way_to_import_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_source", lambda module: tmp_path / "m.py")

    def imports(source: str) -> set[str]:
        (tmp_path / "m.py").write_text(source)
        return provenance._read.__wrapped__("gnn_encoder.engines.local")[0]

    source = """
import gnn_encoder.artifacts.folder
def inside():
    from gnn_encoder.models import backbone
    from gnn_encoder.data.beir import x
    import numpy.linalg
"""
    assert imports(source) >= {
        "gnn_encoder.artifacts", "gnn_encoder.artifacts.folder", "gnn_encoder.models", "gnn_encoder.models.backbone",
        "gnn_encoder.data.beir", "numpy",
    }  # fmt: skip
    for relative in ("from . import lifeline", "from ..data.beir import x"):
        with pytest.raises(AssertionError, match="relative import"):
            imports(relative)


def test_comments_and_docstrings_change_nothing_and_code_does(tmp_path: Path) -> None:
    def meaning(source: str) -> str:
        return provenance._meaning(ast.parse(source), tmp_path / "m.py")

    code = meaning('"""One."""\nX = 1\n\n\ndef f() -> int:\n    """Two."""\n    return X  # three\n')
    assert code == meaning("X = 1\ndef f() -> int:\n    return (X)\n")
    assert code != meaning("X = 2\ndef f() -> int:\n    return X\n")


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., bool]]:
    """Whether a replacement in a module of the settings changes the code digest of a step."""
    find = provenance._find

    def digest(step: str, module: str, source: str) -> str:
        path = tmp_path / "settings" / "changed.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        monkeypatch.setattr(provenance, "_find", lambda name: path if name == module else find(name))
        provenance._read.cache_clear()
        return provenance.code_digest.__wrapped__(f"gnn_encoder.steps.{step}")

    def replaced(step: str, name: str, old: str, new: str) -> bool:
        module, source = f"gnn_encoder.settings.{name}", (PACKAGE / "settings" / f"{name}.py").read_text()
        assert old in source
        return digest(step, module, source) != digest(step, module, source.replace(old, new))

    yield replaced
    provenance._read.cache_clear()


@pytest.mark.parametrize(
    ("step", "module", "old", "new"),
    [
        ("build_graph", "graph", '- {"none"}', ""),  # which edges it makes
        ("build_graph", "shared", '"precision": self.precision', '"precision": "fp32"'),
        ("evaluate", "measures", '"RR@10", "nDCG@10"', '"RR@10"'),
        ("build_graph", "shared", 'MINILM = "minilm"', 'MINILM = "mini"'),
    ],
)
def test_behaviour_in_the_settings_modules_counts(
    step: str, module: str, old: str, new: str, changed: Callable[..., bool]
) -> None:
    assert changed(step, module, old, new)


def test_a_settings_module_counts_for_the_steps_that_import_it(changed: Callable[..., bool]) -> None:
    assert not changed("ingest", "measures", '"RR@10", "nDCG@10"', '"RR@10"')


@pytest.mark.parametrize(
    ("step", "module", "old", "new"),
    [
        ("build_graph", "graph", "neighbors: PositiveInt = 25", "neighbors: PositiveInt = 20"),  # an argument
        ("evaluate", "outcome", "class Promote(", "class A(StepSettings):\n    a: int = 1\nclass Promote("),
        ("train_gnn", "graph", "self.mask_fraction > 0.5", "self.mask_fraction > 0.4"),  # refused before any step
        ("build_graph", "pipeline", '"encode_queries", ', ""),
        ("build_graph", "graph", "k: passages per training query", "k"),
    ],
)  # fmt: skip
def test_values_that_the_arguments_hold_do_not_count(
    step: str, module: str, old: str, new: str, changed: Callable[..., bool]
) -> None:
    assert not changed(step, module, old, new)


@pytest.mark.slow
def test_a_template_is_part_of_the_steps_that_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def digests() -> dict[str, str]:
        return {step: provenance.code_digest.__wrapped__(f"gnn_encoder.steps.{step}") for step in TRAINING}

    before, digest = digests(), provenance.sha256

    def changed(template: str) -> set[str]:
        monkeypatch.setattr(provenance, "sha256", lambda path: "another" if path.name == template else digest(path))
        return {step for step, value in digests().items() if value != before[step]}

    assert changed("none.html.j2") == set()
    assert changed("report.html.j2") == changed("influences.html.j2") == changed("report.js") == {"report"}
    assert changed("model_card.md.j2") == {"choose_bundle", "promote"}
    assert changed("pyfunc.py") == {"promote"}  # MLflow copies it into the registered model
    assert changed("explanation.html.j2") == set()


def read_by(node: Node) -> set[str]:
    """The steps whose outputs a call reads, directly or through another."""
    direct = {artifact.node for _, artifact in node.artifacts()}  # type: ignore[union-attr]
    return {source.step for source in direct}.union(*map(read_by, direct))


@pytest.mark.slow
def test_a_changed_report_leaves_what_promote_reads_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = train(Settings())
    assert {"evaluate", "build_graph", "encode_corpus"} <= read_by(graph["promote"]) and graph.of("report")
    assert "report" not in read_by(graph["promote"])

    monkeypatch.setattr(provenance, "source_digests", lambda *_: {})
    monkeypatch.setattr(provenance, "code_digest", provenance.code_digest.__wrapped__)
    of_file, of_module = provenance.sha256, provenance._read
    before = provenance.graph_arguments(graph)

    def changed(name: str) -> set[str]:
        monkeypatch.setattr(provenance, "sha256", lambda path: "another" if path.name == name else of_file(path))

        def read(module: str) -> tuple[set[str], str]:
            imports, digest = of_module(module)
            return imports, "another" if module == name else digest

        monkeypatch.setattr(provenance, "_read", read)
        after = provenance.graph_arguments(graph)
        return {title for title, arguments in after.items() if arguments != before[title]}

    assert changed("report.html.j2") == changed("gnn_encoder.report.page") == {"report"}
    # The control. The README that choose_bundle writes has the comparisons of the gate.
    assert changed("gnn_encoder.promotion.gate") == {"choose_bundle", "promote"}


def test_all_modules_can_be_followed() -> None:
    for path in PACKAGE.glob("*/**/*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(["gnn_encoder", *(p for p in parts if p != "__init__")])
        assert name == "gnn_encoder" or provenance._source(name) == path


def test_the_packages_digest_has_every_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipelines, too, which are a link in a source tree and a folder in an image."""
    read: list[Path] = []
    monkeypatch.setattr(provenance, "sha256", lambda path: read.append(path) or "a digest")
    provenance.package_digest()
    files = [path.relative_to(PACKAGE).as_posix() for path in read]
    assert len(files) == len(set(files)) and {"errors.py", "pipelines/train.py", "engines/step.py"} <= set(files)
    assert {name.partition("/")[0] for name in files if "/" in name} == {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }


def test_arguments_name_settings_code_and_sources(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    shared = {"backbone": str(tmp_path / "model"), "generator": "facebook/bart-base"}
    settings = parse_settings({"shared": shared})
    digests = provenance.source_digests("train_dpr", settings.train_dpr)
    assert provenance.source_digests("train_dual_encoder", settings.train_dual_encoder) == digests
    assert provenance.source_digests("train_query_generator", settings.train_query_generator) == {
        "generator": "facebook/bart-base"
    }
    assert provenance.source_digests("generate_queries", settings.generate_queries) == {
        "sentence_encoder": MINILM_SHA256
    }
    (tmp_path / "model" / "weights").write_text("2")
    provenance.backbone_digest.cache_clear()
    assert provenance.source_digests("train_dpr", settings.train_dpr) != digests
    first, second = (
        provenance.source_digests("promote", settings.promote, uri) for uri in ("sqlite:///a", "sqlite:///b")
    )
    assert first != second


def test_the_last_step_knows_what_the_whole_run_is_made_of(tmp_path: Path) -> None:
    tree = {"shared": {"backbone": "minilm", "generator": "minilm"}, "ingest": {"dataset": "python-docs"}}

    def origin(*overrides: str, without: tuple[str, ...] = ()) -> dict[str, str]:
        graph = train(parse_settings(tree, overrides))
        graph.nodes = [node for node in graph.nodes if node.step not in without]
        digests = provenance.graph_arguments(graph, registry=str(tmp_path))["promote"].source_digests
        return {name: digests[name] for name in ORIGIN}

    data, settings, code = origin().values()
    assert len({data, settings, code}) == 3
    longer = origin("train_gnn.epochs=9")
    assert (longer["run.data"], longer["run.code"]) == (data, code) and longer["run.settings"] != settings
    packages = origin("ingest.packages=[numpy]")
    assert packages["run.data"] != data and packages["run.code"] == code
    assert origin(without=("report",))["run.code"] == code != origin(without=("measure_latency",))["run.code"]


def test_step_arguments_are_what_steps_parse() -> None:
    tree = {"shared": {"backbone": "minilm", "generator": "minilm"}, "ingest": {"dataset": "python-docs"}}
    graph = train(parse_settings(tree))
    arguments_of = provenance.graph_arguments(graph)
    assert list(arguments_of) == [node.title for node in graph.nodes]
    for node in graph.nodes:
        read = StepArguments.model_validate_json(arguments_of[node.title].model_dump_json())
        assert type(node.settings).model_validate(read.settings) == node.settings
        assert (read.label, read.code_digest) == (node.label, provenance.code_digest(f"gnn_encoder.steps.{node.step}"))
    ranked = arguments_of["rank: Untrained"]
    assert (ranked.label, ranked.settings["system"]) == ("Untrained", "Untrained")
    assert ranked.source_digests == {"backbone": MINILM_SHA256}
    assert arguments_of["train_dpr"].settings["backbone"] == "minilm"
    assert arguments_of["train_dpr"].source_digests == {"backbone": MINILM_SHA256}


def test_a_broken_distribution_that_no_step_imports_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    providers = provenance.importlib.metadata.packages_distributions()
    monkeypatch.setattr(provenance.importlib.metadata, "packages_distributions", lambda: {**providers, "left": [None]})
    for function in (provenance._providers, provenance._version):
        function.cache_clear()
    assert "numpy=" in provenance._version("numpy")
    with pytest.raises(ValueError):
        provenance._version("left")
    for function in (provenance._providers, provenance._version):
        function.cache_clear()
