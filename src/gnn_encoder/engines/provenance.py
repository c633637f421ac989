"""Computes digests of what a step's result depends on besides inputs and settings: code, data source, backbones.

KFP's cache compares arguments only, so the digests are arguments. The code digest of a step covers the modules that the
step's module imports, directly or indirectly, and the module that its processes run (`STARTED_BY_NAME`). So a change in
the report or in a comment does not repeat a training.
"""

import ast
import functools
import hashlib
import importlib.metadata
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.bundle import SERVING
from gnn_encoder.artifacts.calibration import CALIBRATION
from gnn_encoder.artifacts.finished_run import BUNDLE, graph_bundle
from gnn_encoder.artifacts.folder import MANIFEST, digest_of, folder_digest, read_manifest, sha256
from gnn_encoder.errors import UserError, without_password
from gnn_encoder.flow.arguments import ORIGIN, StepArguments
from gnn_encoder.flow.graph import Graph
from gnn_encoder.settings.first_stage import BM25, POOL, RUN_FILES, FirstStage
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.settings.measures import floor_parts, of_documents
from gnn_encoder.settings.outcome import Evaluate, Promote
from gnn_encoder.settings.reranking import MADE_WORD_VECTORS, TrainReranker
from gnn_encoder.settings.shared import is_address
from gnn_encoder.settings.values import StepSettings
from gnn_encoder.settings.written import TITLES, WriteQueries
from gnn_encoder.storage import file_at, is_remote, list_folder

PACKAGE = "gnn_encoder"
SOURCE = Path(__file__).parents[1]
OBSERVERS = tuple(
    f"{PACKAGE}.{name}"
    for name in ("settings.pipeline", "flow", "pipelines", "storage", "tracking", "engines.lifeline")
)
"""Rooms and modules that do not affect results: they watch steps, list a pipeline's steps, or copy files whose
digests are in the arguments."""
STARTED_BY_NAME = {f"{PACKAGE}.training.ranks": f"{PACKAGE}.engines.rank"}
"""Module → the module that Python starts by its name (`-m`) in the steps that import the first one."""
DATA = ("dataset", "labels", "log", "forgotten")
"""Settings of `ingest` that name data."""
BACKBONES = (
    "backbone", "generator", "sentence_encoder", "untrained_backbone", "encoder", "published", "agreeing_reranker",
)  # fmt: skip
"""Settings that name a pretrained model."""
PREVIOUS: dict[str, Callable[[Path], tuple[Path, ...]]] = {
    "build_graph": lambda run: (run / "graph", run / "passage_vectors"),
    "encode": lambda vectors: (vectors,),
    "encode_nodes": lambda run: (run / "encoding",),
    "encode_corpus": lambda run: (graph_bundle(run),),
    "choose_bundle": lambda run: (run / BUNDLE,),
}
"""Step → artifacts from which it reuses results, given its setting `previous`, mostly the folder of an earlier run."""


def graph_arguments(graph: Graph, registry: str = "") -> dict[str, StepArguments]:
    """Returns {title of a call: its argument} of a graph.

    `registry` is the URI of the model registry, with a text about the registered versions. Raises UserError if the data
    source, a local backbone or the earlier run does not exist, or if the data lack the documents that a measure or a
    system needs.
    """
    arguments = {
        node.title: StepArguments(
            settings=node.settings.model_dump(mode="json"),
            code_digest=code_digest(f"{PACKAGE}.steps.{node.step}"),
            source_digests=source_digests(node.step, node.settings, registry),
            label=node.label,
        )
        for node in graph.nodes
    }
    origin = _origin(arguments)
    for node in graph.of("promote"):
        arguments[node.title].source_digests.update(origin)
    _check_documents(graph)
    return arguments


def _check_documents(graph: Graph) -> None:
    """Refuses what needs documents for data without documents; otherwise a step would, after all training."""
    if not graph.of("evaluate"):
        return
    evaluate, ingest = graph.of("evaluate")[-1].settings, graph["ingest"].settings
    assert isinstance(evaluate, Evaluate) and isinstance(ingest, Ingest)
    needs = []
    for node in graph.nodes:
        if node.step == "propagate_sections":
            needs.append((f"{node.label} reads the sections of passages", "leave that system out"))
        if node.step == "encode_context":
            needs.append((f"{node.label} reads passages in their documents", "leave that system out"))
        settings = node.settings
        if isinstance(settings, TrainReranker) and settings.negatives_from == "corpus" and settings.document_negatives:
            setting = f"train_reranker.document_negatives = {settings.document_negatives} draws from documents"
            needs.append((setting, "set it to 0"))
    measures = {"evaluate.measures": list(evaluate.measures)}
    if promotions := graph.of("promote"):
        promote = promotions[-1].settings
        assert isinstance(promote, Promote)
        measures |= {
            "promote.floors": [floor_parts(name)[1] for name in promote.floors],
            "promote.measure": [promote.measure],
        }
    for where, listed in measures.items():
        if names := of_documents(listed):
            needs.append((f"{where} has {', '.join(names)}", "choose other measures"))
    if needs:
        from gnn_encoder.data import has_documents

        if not has_documents(ingest):
            setting, instead = needs[0]
            raise UserError(
                f"{setting}, but nothing in {ingest.dataset or ingest.format} says which document a passage is in: "
                f"{instead}, or give data with documents"
            )


def _origin(arguments: Mapping[str, StepArguments]) -> dict[str, str]:
    """Returns the digests of a whole run's data, settings (with backbones) and code, named as in `ORIGIN`.

    The path of the data and the address of the registry are left out.
    """
    data, settings, models, code = {}, {}, {}, {}
    for title, call in arguments.items():
        if title.partition(": ")[0] == "report":
            continue  # a change of the page is no reason to train again
        if read := [digest for name in DATA if (digest := call.source_digests.get(name))]:
            data[title] = read
        models[title] = {k: v for k, v in call.source_digests.items() if k not in (*DATA, "registry")}
        settings[title] = {k: v for k, v in call.settings.items() if title != "ingest" or k not in DATA}
        code[title] = call.code_digest
    digests = (digest_of(data), digest_of({"settings": settings, "models": models}), digest_of(code))
    return dict(zip(ORIGIN, digests, strict=True))


def source_digests(step: str, values: StepSettings, registry: str = "") -> dict[str, str]:
    """Returns {name: digest} of what a step reads or changes outside the pipeline."""
    digests = {}
    if step == "ingest":
        from gnn_encoder.data import source_digest

        assert isinstance(values, Ingest)
        digests["dataset"] = source_digest(values)
        if values.labels:
            if not Path(values.labels).is_file():
                raise UserError(f"ingest.labels = {values.labels}: no such file; give a labels.jsonl of a bundle")
            digests["labels"] = sha256(Path(values.labels))
        if values.forgotten:
            digests["forgotten"] = sha256(Path(values.forgotten))
    if step == "promote":  # a bundle registered in one store is not registered in another
        # Without the password, because a digest would allow to test guesses of the password.
        digests["registry"] = hashlib.sha256(without_password(registry).encode()).hexdigest()
    if previous := getattr(values, "previous", ""):
        reused = PREVIOUS[step](Path(previous))
        digests["previous"] = digest_of({path.name: read_manifest(path).digest for path in reused})
    if isinstance(values, FirstStage):
        digests |= _first_stage_digest(values)
    if (vectors := getattr(values, "word_vectors", MADE_WORD_VECTORS[0])) not in MADE_WORD_VECTORS:
        if not is_remote(vectors) and not Path(vectors).is_file():
            raise UserError(f"word_vectors = {vectors}: no such file; give a GloVe text file, backbone, or trained")
        digests["word_vectors"] = _file_digest(vectors)
    if folder := getattr(values, "vectors", ""):
        if not Path(folder).is_dir():
            raise UserError(f"{step}.vectors = {folder}: no such folder")
        digests["vectors"] = folder_digest(Path(folder))
    if isinstance(values, WriteQueries):
        digests |= _digests_for_queries(values)
    for name in BACKBONES:
        if model := getattr(values, name, ""):
            digests[name] = backbone_digest(model)
    return digests


def _digests_for_queries(values: WriteQueries) -> dict[str, str]:
    digests = {}
    if values.prompts:
        if not Path(values.prompts).is_dir():
            raise UserError(f"write_queries.prompts = {values.prompts}: no such folder; give one with files KIND.j2")
        digests["prompts"] = folder_digest(Path(values.prompts))
    if values.examples:
        if not Path(values.examples).is_file():
            raise UserError(f"write_queries.examples = {values.examples}: no such file; give one with a query a line")
        digests["examples"] = sha256(Path(values.examples))
    return digests


def _first_stage_digest(values: FirstStage) -> dict[str, str]:
    if values.source in (BM25, POOL):
        return {}
    if values.bundle:
        if not is_remote(values.bundle):
            return {"first_stage": digest_of(_of_first_stage(Bundle.read(values.bundle)))}
        listing = list_folder(values.bundle, indexed=False)
        if MANIFEST not in listing:
            endings = ", ".join(RUN_FILES)
            raise UserError(
                f"{values.bundle} is no bundle; the name of a run file ends with {endings}, or such with .gz"
            )
        return {"first_stage": digest_of({name: asdict(file) for name, file in listing.items()})}
    if not is_remote(values.source) and not Path(values.source).is_file():
        known = f"{BM25}, {POOL}, a TREC run file, or the folder of a finished run, such as ROOT/latest"
        raise UserError(f"no first stage {values.source!r}: give {known}")
    return {"first_stage": _file_digest(values.source)}


def _of_first_stage(bundle: Bundle) -> dict[str, Any]:
    """Returns what the hits of a bundle's first stage depend on, which are the same when it has got a re-ranker."""
    files = {name: facts for name, facts in bundle.searched.items() if name != CALIBRATION}
    return {**files, SERVING: bundle.serving.first_stage.facts()}


def _file_digest(path: str) -> str:
    return digest_of(asdict(file_at(path))) if is_remote(path) else sha256(Path(path))


def package_digest() -> str:
    """Returns the digest of this package's whole source, which is also a label of the images."""
    # `rglob` would not follow the link to the pipelines.
    patterns = [f"{rooms}{kind}" for rooms in ("", "*/**/") for kind in ("*.py", "*.j2", "*.js", "*.css")]
    files = sorted(path for pattern in patterns for path in SOURCE.glob(pattern))
    return digest_of({path.relative_to(SOURCE).as_posix(): sha256(path) for path in files})


@functools.cache
def backbone_digest(name: str) -> str:
    """Returns the digest of a local model folder's contents, or an unchanged hub name or address."""
    from gnn_encoder.models.backbone_files import PACKAGED, resolve_backbone

    if is_address(name) or name == TITLES:
        return name
    resolved = resolve_backbone(name)
    if name in PACKAGED:
        return PACKAGED[name].sha256  # `resolve_backbone` has just checked this digest
    return folder_digest(Path(resolved)) if Path(resolved).is_dir() else resolved


@functools.cache
def code_digest(module: str) -> str:
    """Returns the digest of a module, the package's modules that it imports, their templates, and package versions.

    Docstrings and comments are left out. The minor version of Python is included.
    """
    modules, others = closure(module)
    versions = {name: _version(name) for name in others}
    sources = {name: _read(name)[1] for name in modules}
    sources |= {path.name: sha256(path) for name in modules for path in _templates(_source(name))}
    return digest_of({"python": sys.version_info[:2], "versions": versions, "modules": sources})


@functools.cache
def _templates(source: Path) -> set[Path]:
    """Returns the templates that a module names, and those that a template names.

    A template lies in the module's folder. Code that is copied and not imported (`"../serving/pyfunc.py"`) is one, too.
    """
    templates: set[Path] = set()
    waiting = [source]
    while waiting:
        named = re.findall(
            r"[\w.]+\.(?:j2|js|css)\b|(?<=\")\.\./\w+/\w+\.py(?=\")", waiting.pop().read_text(encoding="utf-8")
        )
        new = {path for path in map(source.parent.joinpath, named) if path.is_file()} - templates
        templates |= new
        waiting += new
    return templates


def closure(module: str) -> tuple[set[str], set[str]]:
    """Returns the package's modules that `module` needs, itself included, and the other packages that they import."""
    modules: set[str] = set()
    others: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in modules or f"{name}.".startswith(tuple(f"{observer}." for observer in OBSERVERS)):
            continue
        modules.add(name)
        if started := STARTED_BY_NAME.get(name):
            waiting.append(started)
        for imported in _read(name)[0]:
            top = imported.partition(".")[0]
            if top == PACKAGE:
                waiting.append(imported)
            elif top not in sys.stdlib_module_names:
                others.add(top)
    return modules, others


@functools.cache
def _read(module: str) -> tuple[set[str], str]:
    """Returns the modules that a module imports, and the digest of its meaning. A file is parsed once for both."""
    source = _source(module)
    tree = ast.parse(source.read_bytes())
    return _imports(tree, module), hashlib.sha256(_meaning(tree, source).encode()).hexdigest()


def _imports(tree: ast.Module, module: str) -> set[str]:
    """Returns the modules named in a module's import statements, also inside functions, and the packages around them.

    A package counts because an import of its module runs its `__init__`; the root's does nothing.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{module} has a relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}  # `from package import module`
            names |= {node.module, *(name for name in inside if name.startswith(PACKAGE) and _find(name))}
    return {prefix for name in names for prefix in accumulate(name.split("."), "{}.{}".format)} - {PACKAGE}


def _find(module: str) -> Path | None:
    path = SOURCE.joinpath(*module.split(".")[1:])
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def _source(module: str) -> Path:
    if path := _find(module):
        return path
    raise ModuleNotFoundError(f"{module} is imported by a step but is not in {SOURCE}")


def _meaning(tree: ast.Module, source: Path) -> str:
    """Returns a source file without parts that change no result: layout, comments, docstrings, declared settings.

    They are gone from the tree, too.
    """
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    if source.parent.name == "settings":
        tree.body = [node for node in tree.body if not _declares(node)]
    return ast.dump(tree)


def _declares(node: ast.stmt) -> bool:
    """Returns whether a statement of a settings module only decides which values a step's arguments may have.

    Fields and validators are removed from classes. Otherwise a new default of one step would run every step again whose
    settings are in the same module. Properties, methods, functions and constants stay.
    """
    if isinstance(node, ast.ClassDef):
        node.body = [part for part in node.body if not _declares(part) and not isinstance(part, ast.AnnAssign)]
        return not node.body
    if isinstance(node, ast.FunctionDef):
        return node.name == "_problems" or any(
            "validator" in ast.unparse(decorator) for decorator in node.decorator_list
        )
    exported = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    return exported or isinstance(node, ast.Import | ast.ImportFrom)


@functools.cache
def _providers() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


@functools.cache
def _version(package: str) -> str:
    """Returns the versions of the distributions that provide a top-level package."""
    names = sorted(set(_providers().get(package, ())))
    return ",".join(f"{name}={importlib.metadata.version(name)}" for name in names) or "none"
