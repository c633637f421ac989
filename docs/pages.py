"""Hooks of mkdocs: the pages that the build makes, and links that lead out of `docs/`.

The home page is README.md. Settings, commands, HTTP and systems are read from the code, so they are never behind it.
A link to a file of the source tree leads to a page with its text, so the site needs no other server. On GitHub, which
has no generated pages, links lead to a section of `reference/index.md`; here they lead to the page itself.
"""

import ast
import inspect
import json
import posixpath
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PROJECT = Path(__file__).parents[1]
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
}
"""Page of the source tree → its page of the site."""
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
"""A relative link of Markdown: its path and its anchor."""
PICTURE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A flowchart, which GitHub draws. Here the build draws it, so that a reader's browser fetches nothing."""
SCALED = '<svg style="max-width: 100%; height: auto; background: white; border-radius: 4px" role="img" '
NAME = re.compile(r"`(?:gnn_encoder\.)?((?:\w+[./])+\w+)`")
"""What may be a module or a file of the source tree in a docstring."""


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that the build makes: moved ones, the reference, and the files of the tree that pages link to."""
    from mkdocs.structure.files import File

    pages = {page: (PROJECT / path).read_text("utf-8") for path, page in MOVED.items()} | reference()
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    texts = {file.src_uri: file.content_string for file in files if file.src_uri.endswith(".md")}
    for uri, text in texts.items():
        for path, _ in LINK.findall(text):
            if (target := _source(uri, path)) and not files.get_file_from_path(page_of_file(target)):
                files.append(File.generated(config, page_of_file(target), content=_listing(target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Returns a page whose links lead to pages of the site, with its flowcharts as pictures."""
    import merm

    uri = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        path, anchor = link.groups()
        if source := _source(uri, path):
            return _relative(page_of_file(source), uri)
        target = _target(uri, path)
        if target == "docs/reference/index.md" and anchor:
            return _relative(f"reference/{anchor[1:]}.md", uri)
        target = MOVED.get(target, target.removeprefix("docs/"))
        return _relative(target, uri) + anchor

    def drawn(chart: re.Match[str]) -> str:
        picture = " ".join(merm.render_diagram(chart.group(1)).split())
        return f"<div>{picture.replace('<svg ', SCALED, 1)}</div>"

    return markdown if uri.startswith("source/") else PICTURE.sub(drawn, LINK.sub(moved, markdown))


def reference() -> dict[str, str]:
    """Returns {page: its Markdown} of the reference."""
    return {
        "reference/settings.md": "\n".join(_settings()),
        "reference/commands.md": "\n".join(_commands()),
        "reference/http.md": "\n".join(_http()),
        "reference/systems.md": "\n".join(_systems()),
        "reference/python.md": "\n".join(_python()),
    }


def documented(model: type) -> dict[str, str]:
    """Returns {field: its docstring} of a settings class, with inherited fields."""
    fields: dict[str, str] = {}
    for parent in reversed(model.__mro__):
        if not hasattr(parent, "model_fields") or parent.__module__.startswith("pydantic"):
            continue
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        assert isinstance(declared, ast.ClassDef)
        for line, following in zip(declared.body, [*declared.body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                name, text = line.target.id, ""
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    text = inspect.cleandoc(str(following.value.value))
                fields[name] = text or fields.get(name, "")
    return {name: fields[name] for name in model.model_fields}  # type: ignore[attr-defined]


def _settings() -> Iterator[str]:
    from gnn_encoder.settings.pipeline import PIPELINES, Settings
    from gnn_encoder.settings.presets import preset_names, settable

    yield "# Settings\n"
    yield "A run is a list of steps, and each step has a section of settings. `--set STEP.NAME=VALUE` changes one, and"
    yield "so does a line in a preset's file:\n"
    yield "```bash\ngnn-encoder run --preset quickstart --set train_gnn.epochs=3 --set ingest.dev_fraction=0.2\n```\n"
    yield "`--set shared.backbone=bert-base-uncased` changes a setting in all sections that have it. A list: `[1, 2]`."
    yield f"The presets are {', '.join(f'`{name}`' for name in preset_names())}."
    yield "What a run sets by itself is left out.\n"
    yield "*Pipelines* are the runs that have the step: `train` is `run --preset`, `ladder` is `run` without a preset,"
    yield "`ablation` is `ablate`. M_de is the dual encoder, M_ce the cross-encoder, h_p a passage's vector, h'_p that"
    yield "after the GNN. Equations and sections are those of [the papers](../concepts/papers.md).\n"
    for step, field in Settings.model_fields.items():
        model: Any = field.annotation
        kinds = model.model_json_schema()["properties"]
        yield f"\n## {step}\n\n{_linked(_sentences(model.__doc__))}\n"
        if pipelines := [f"`{name}`" for name, steps in PIPELINES.items() if step in steps]:
            yield f"*Pipelines*: {', '.join(pipelines)}.\n"
        rows = [
            (f"`{name}`", f"`{_value(getattr(field.default, name))}`", _kind(kinds[name]), _linked(text))
            for name, text in documented(model).items()
            if name in settable(step)
        ]
        yield from _table(("setting", "default", "values", "what it does"), rows)


def _linked(text: str) -> str:
    """Returns a docstring in which the names of modules and files of the source tree are links."""

    def link(name: re.Match[str]) -> str:
        path = name.group(1)
        places = (path, f"src/gnn_encoder/{path}", f"src/gnn_encoder/{path.replace('.', '/')}.py")
        return next((f"[{name.group()}](../../{place})" for place in places if _is_file(place)), name.group())

    return NAME.sub(link, text)


def _is_file(path: str) -> bool:
    return (PROJECT / path).is_file()


def _value(default: Any) -> str:
    return json.dumps(default, ensure_ascii=False, default=dict)


def _commands() -> Iterator[str]:
    from typer.main import get_command

    from gnn_encoder.cli.app import app

    yield "# Commands\n\n`gnn-encoder COMMAND --help` prints the same.\n"
    yield from _command("gnn-encoder", get_command(app))


def _command(name: str, command: Any) -> Iterator[str]:
    if subcommands := getattr(command, "commands", {}):
        for part, subcommand in subcommands.items():
            if not subcommand.hidden:
                yield from _command(f"{name} {part}", subcommand)
        return
    yield f"\n## {name.removeprefix('gnn-encoder ')}\n\n{_sentences(command.help)}\n"
    rows = []
    for option in command.params:
        words = [*option.opts, *option.secondary_opts] if option.param_type_name == "option" else [option.name.upper()]
        if option.param_type_name == "option" and not option.is_flag:
            words[0] += f" {option.metavar or option.display_type(None)}"
        plain = option.default not in (None, False, (), [], "") and not callable(option.default)
        default = f" Default: `{option.default}`." if plain and option.default is not Ellipsis else ""
        needed = " Required." if option.required else ""
        rows.append(
            (", ".join(f"`{word}`" for word in words), _sentences(getattr(option, "help", "")) + needed + default)
        )
    if rows:
        yield from _table(("option", "what it does"), rows)


def _http() -> Iterator[str]:
    description = openapi()
    schemas = description["components"]["schemas"]
    yield "# HTTP\n\nWhat `gnn-encoder serve` answers. `/openapi.json` of a server is the same for programs."
    yield "With `GNN_ENCODER_TOKEN` requests need `Authorization: Bearer TOKEN`, except probes, pages and metrics.\n"
    yield "`GET /health/live`, `GET /health/ready` and `GET /metrics` (Prometheus) are for a cluster.\n"
    yield "An error is a `Problem` (RFC 9457): JSON with `title`, `status`, and `detail`, which says what is wrong.\n"
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield f"\n## {method.upper()} {path}\n\n{_sentences(operation.get('description'))}\n"
            if body := operation.get("requestBody"):
                yield from _schema("Request", body["content"]["application/json"]["schema"], schemas)
            answers = operation["responses"]
            content = answers["200"].get("content", {}).get("application/json", {})
            yield from _schema("Answer", content.get("schema", {}), schemas)
            others = [f"{status} {answer['description']}" for status, answer in answers.items() if status != "200"]
            yield f"\nErrors: {', '.join(others)}.\n" if others else ""


def openapi() -> dict[str, Any]:
    """Returns the OpenAPI description of a server that asks for a token and keeps labels. It needs no bundle."""
    from gnn_encoder.serving import app

    bundle = SimpleNamespace(passages=(), manifest=SimpleNamespace(digest=""))
    served = SimpleNamespace(version="", system="", retriever=SimpleNamespace(bundle=bundle))
    followed: Any = SimpleNamespace(current=served)
    return app.create_app(followed, token="token").openapi()


def _schema(title: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    """Yields the tables of an object and of the objects within it."""
    name = schema.get("$ref", "").rpartition("/")[2]
    if not name:
        return
    fields, needed = schemas[name].get("properties", {}), schemas[name].get("required", [])
    yield f"\n**{title}**: `{name}`. {_sentences(schemas[name].get('description'))}\n"
    rows, within = [], []
    for field, facts in fields.items():
        kinds = [facts, *facts.get("anyOf", [])]
        within += [part for kind in kinds for part in (kind, kind.get("items", {})) if "$ref" in part]
        default = "required" if field in needed else f"`{json.dumps(facts.get('default'))}`"
        rows.append((f"`{field}`", _kind(facts), default, facts.get("description", "")))
    yield from _table(("field", "type", "default", "what it is"), rows)
    for example in schemas[name].get("examples", []):
        yield f"\n```json\n{json.dumps(example, ensure_ascii=False)}\n```\n"
    for part in within:
        yield from _schema("Within", part, schemas)


def _kind(schema: Mapping[str, Any]) -> str:
    """Returns the values that a JSON schema allows, in words."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(_kind(part) for part in schema["anyOf"])
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(f"`{value}`" for value in values)
    if "items" in schema:
        return f"list of {_kind(schema['items'])}"
    low, high, above = (schema.get(bound) for bound in ("minimum", "maximum", "exclusiveMinimum"))
    least = f"above {above:g}" if above is not None else f"at least {low:g}" if low is not None else ""
    most = f"at most {high:g}" if high is not None else ""
    both = f"{low:g} to {high:g}" if low is not None and high is not None else ", ".join(filter(None, (least, most)))
    return f"{schema.get('type', 'any')} {both}".strip()


def _systems() -> Iterator[str]:
    from gnn_encoder.settings.reranking_systems import SYSTEMS as RERANKERS
    from gnn_encoder.settings.systems import LEXICAL, SYSTEMS, UNTRAINED

    yield "# Systems\n\nWhat a run compares, simplest first. A run recommends the first that nearly equals the best."
    yield "*Trains*: a network of its own. *Labels alone*: labelled queries are used without training. *With BM25*: a"
    yield "row `BM25 + …` has the sum of both scores, too. `untrained` in a name: the encoder is a published one, as it"
    yield "is. On [the ladder](../concepts/ladder.md) a run has the systems of its rungs.\n"
    rows = [
        (
            row.name,
            row.purpose,
            "" if row.labels or row.fusion or row.name in (LEXICAL, UNTRAINED) else "yes",
            "yes" if row.labels or row.fusion else "",
            "yes" if row.fusions else "",
        )
        for row in SYSTEMS.values()
    ]
    yield from _table(("system", "what it is", "trains", "labels alone", "with BM25"), rows)
    yield "\n## Re-rankers\n\nThe names of `gnn-encoder rerank --systems`."
    yield "[The guide](../guides/comparisons.md#re-rankers) says what each is.\n"
    reranking = [
        (
            f"`{name}`",
            row.title,
            f"`{row.evaluates or row.kind}`",
            ", ".join(f"`{k}={v}`" for k, v in row.changes.items()),
        )
        for name, row in RERANKERS.items()
    ]
    yield from _table(("name", "title", "kind", "settings that differ"), reranking)


def _python() -> Iterator[str]:
    import gnn_encoder

    yield "# Python\n\nWhat `from gnn_encoder import …` offers. [The guide](../guides/python.md) shows its use.\n"
    for name in sorted(gnn_encoder.__all__, key=lambda name: (name[0].isupper(), name != "run", name == "UserError")):
        if not name.startswith("_"):
            heading = f"    options: {{heading: gnn_encoder.{name}, toc_label: {name}}}"
            yield f"::: {getattr(gnn_encoder, name).__module__}.{name}\n{heading}\n"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |\n|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_sentences(cell).replace('|', chr(92) + '|') for cell in row)} |"


def _sentences(text: str | None) -> str:
    """Returns a docstring on one line."""
    return " ".join(inspect.cleandoc(text or "").split()).replace("`|`", "`\\|`")


def page_of_file(path: str) -> str:
    """Returns the page of a file of the source tree; mkdocs leaves out names that begin with a dot."""
    return f"source/{path.removeprefix('.')}.md"


def _listing(path: str) -> str:
    """Returns the text of that page."""
    place = PROJECT / path
    kind = {".py": "python", ".yaml": "yaml", ".yml": "yaml"}.get(place.suffix, "text")
    return f"# {path}\n\n````` {{.{kind} linenums=1}}\n{place.read_text('utf-8')}\n`````\n"


def _origin(uri: str) -> str:
    """Returns the path of a page of the site in the source tree."""
    moved = {page: path for path, page in MOVED.items()}
    return moved.get(uri, f"docs/{uri}")


def _target(uri: str, path: str) -> str:
    """Returns the path in the source tree that a link of a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(_origin(uri)), path))


def _source(uri: str, path: str) -> str:
    """Returns the file of the source tree that a link of a page leads to; empty if it is a page of the site."""
    target = _target(uri, path)
    is_page = target in MOVED or target.startswith("docs/")
    return "" if is_page or not (PROJECT / target).is_file() else target


def _relative(target: str, uri: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(uri) or ".")
