"""The command `judge`: a language model grades the hits of bundles."""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, Root, RunDataset, Split
from gnn_encoder.errors import UserError

if TYPE_CHECKING:
    from gnn_encoder.judging.agreement import Labels
    from gnn_encoder.judging.grading import Graded, Judgement, Pair
    from gnn_encoder.judging.people import People
    from gnn_encoder.judging.pool import Pool, PooledQuery
    from gnn_encoder.serving.retriever import Retriever
    from gnn_encoder.settings.judging import Judge


class Queries(NamedTuple):
    """Queries to judge: id → text; labels by people of any of them; `left_out`: id → id of a passage that is no hit."""

    texts: dict[str, str]
    human: "Labels"
    left_out: Mapping[str, str] = {}


def judge(
    output: Annotated[Path, typer.Argument(help="Folder to write; the same command goes on with what is in it.")],
    model: Annotated[
        str,
        typer.Option(
            "--judge",
            help="http://…/v1#MODEL, smollm2, or a folder or Hugging Face name of a local model [people alone].",
        ),
    ] = "",
    bundles: Annotated[
        list[str] | None, typer.Option("--bundle", help="A bundle, as in `search`; repeatable [ROOT/latest/bundle].")
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Queries: one a line, optionally with a tab and a count; or BEIR's .jsonl."),
    ] = None,
    qrels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Labels by people of some queries of a .jsonl: TREC qrels.")
    ] = None,
    dataset: RunDataset = None,
    split: Split = "test",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="depth, max_queries, max_calls, relevant, prompt and others."),
    ] = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Grade the first hits of bundles from 0 to 3, by a language model or by people, and compare the bundles.

    Labels by people, if there are any, show how far the model agrees with them, and correct the comparison. `serve
    --judge FOLDER` lets people grade the same hits, the most decisive queries first; this command then reads them.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from dataclasses import asdict

    from rich.console import Console

    from gnn_encoder.judging.agreement import agreement, compared, finite
    from gnn_encoder.judging.people import People, PeoplesFile, labels_of
    from gnn_encoder.judging.pool import FIGURES, LABELS, PEOPLE, POOL, Pool, as_json, write_records
    from gnn_encoder.report.judged import comparison_lines, comparison_table

    settings = _settings(overrides or [])
    if qrels and not queries:
        raise UserError("--qrels has labels for --queries FILE.jsonl: give both, or --dataset alone")
    to_judge = _read_queries(queries, qrels) if queries else _of_dataset(dataset or root / "latest" / "dataset", split)
    systems = _systems(bundles or [str(root / "latest" / "bundle")], root)
    drawn = _drawn(to_judge, settings, len(systems))
    pairs, hits, content = _pooled(systems, drawn, to_judge, settings.depth)
    if not pairs:
        raise UserError("no bundle has a hit for any of the queries, so nothing can be judged")
    output.mkdir(parents=True, exist_ok=True)
    people = People.read(output / PEOPLE)
    is_new = not (output / POOL).exists() or (output / POOL).read_text("utf-8") != "".join(map(as_json, content))
    # No server may take grades in the old order while pool and order are written anew.
    lock = PeoplesFile(output / PEOPLE) if is_new or not people.began else None
    people = lock.people if lock else people  # a server may have taken grades and ended since
    if is_new:
        _write_pool(output, content, people, settings)
    pool = Pool(output / POOL)
    result = _graded(model, output, pairs, settings)
    judgements = result.judgements
    agreed = agreement(judgements, to_judge.human, settings.relevant)
    figures = compared(hits, list(drawn), judgements, to_judge.human, settings.relevant, settings.measures)
    facts = {
        "origin": judgements[0].origin if judgements else "",
        "settings": settings.model_dump(exclude={"prompt"}),
        "graded": len(judgements),
        "failed": result.failed,
        "without_grade": result.without_grade,
        "agreement": asdict(agreed) if agreed else None,
        "comparison": finite(asdict(figures)),
    }
    lines, screen = [], Console()
    if judgements:
        counts = [sum(j.grade == grade for j in judgements) for grade in range(4)]
        shown = ", ".join(f"{grade}: {count:,}" for grade, count in enumerate(counts))
        lines = [f"{len(judgements):,} of {len(pairs):,} hits of {len(drawn):,} queries have a grade ({shown})"]
        lines += comparison_lines(agreed, figures, settings.relevant)
        screen.print(comparison_table(figures))
    if people.began:
        facts["people"], lines_of_people = _by_people(output, pool, judgements, people, settings)
        write_records(output / LABELS, labels_of(people, pool, settings.relevant, of_data=queries is None))
        lines += lines_of_people
    else:
        lines += _ordered(output, pool, judgements, settings)
    if lock:
        lock.close()
    (output / FIGURES).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    screen.print("\n".join([*lines, f"written to {output}"]), markup=False, highlight=False, soft_wrap=True)


def _systems(names: Sequence[str], root: Path) -> "dict[str, Retriever]":
    from gnn_encoder.serving.retriever import Retriever

    systems: dict[str, Retriever] = {}
    for name in names:
        retriever = Retriever.load(name, root)
        system = retriever.bundle.serving.system or retriever.bundle.system
        systems[system if system not in systems else name] = retriever
    if len(systems) < len(names):
        raise UserError("a bundle is named twice: name each once")
    return systems


def _write_pool(output: Path, content: "Sequence[PooledQuery]", people: "People", settings: "Judge") -> None:
    """Writes a pool. People's grades of its pairs stay in force: another machine may order equal scores otherwise."""
    from gnn_encoder.judging.grading import read_judgements
    from gnn_encoder.judging.order import Place, order_of
    from gnn_encoder.judging.pool import JUDGEMENTS, ORDER, POOL, Pool, read_as, write_records

    new, path, order = output / f".{POOL}.new", output / POOL, output / ORDER
    write_records(new, content)
    if people.began:
        pool, former = Pool(new), Pool(path) if path.exists() else None
        if not former or (former.queries, [*former.hits]) != (pool.queries, [*pool.hits]):
            new.unlink()
            raise UserError(
                f"{output} has grades by people of other queries or bundles: name the same ones, or a new folder"
            )
        # Queries keep their places; those whose labels only now make a difference get theirs among them.
        grades = {(j.query_id, j.passage_id): j.grade for j in read_judgements(output / JUDGEMENTS)}
        places = {place.query_id: place for place in order_of(pool, grades, settings.measures[0], settings.seed)}
        places |= {place.query_id: place for place in read_as(order, Place)}
        write_records(order, sorted(places.values(), key=lambda place: (place.key, place.query_id)))
    else:
        # The order of the former pool would leave out queries that now make a difference, until the model has graded.
        order.unlink(missing_ok=True)
    new.replace(path)


def _graded(model: str, output: Path, pairs: "Sequence[Pair]", settings: "Judge") -> "Graded":
    """Grades the pairs by a model, and writes the grades; without a model, reads those of an earlier call."""
    from gnn_encoder.engines.provenance import backbone_digest
    from gnn_encoder.inference.language_model import open_language_model
    from gnn_encoder.judging.grading import Graded, graded, read_judgements, write_qrels_of
    from gnn_encoder.judging.pool import ANSWERS, JUDGEMENTS, QRELS, write_records
    from gnn_encoder.settings.services import addresses_in, allow_key
    from gnn_encoder.tracking.progress import Progress

    if not model:
        known = {(pair.query_id, pair.passage_id) for pair in pairs}
        earlier = [j for j in read_judgements(output / JUDGEMENTS) if (j.query_id, j.passage_id) in known]
        return Graded(earlier, 0, 0)
    allow_key(addresses_in(model))
    opened = open_language_model(model, settings, output / ANSWERS, backbone_digest(model))
    progress = Progress("judge", "grading", len(pairs), "answers")
    result = graded(opened, pairs, settings, partial(typer.echo, err=True), progress)
    write_records(output / JUDGEMENTS, result.judgements)
    write_qrels_of(output / QRELS, result.judgements)
    return result


def _ordered(output: Path, pool: "Pool", judgements: "Sequence[Judgement]", settings: "Judge") -> list[str]:
    """Writes the order in which people judge, and returns a line about it."""
    from gnn_encoder.judging.order import order_of
    from gnn_encoder.judging.pool import ORDER, write_records

    grades = {(j.query_id, j.passage_id): j.grade for j in judgements}
    order = order_of(pool, grades, settings.measures[0], settings.seed)
    write_records(output / ORDER, order)
    command = f"gnn-encoder serve --judge {shlex.quote(str(output))}"
    return [
        f"people can judge at /judge of `{command}`: the labels of {len(order):,} of {len(pool.queries):,} queries "
        "can make a difference"
    ]


def _by_people(
    output: Path, pool: "Pool", judgements: "Sequence[Judgement]", people: "People", settings: "Judge"
) -> tuple[dict[str, Any], list[str]]:
    """Returns what people's grades of the pool say, as JSON, and in lines."""
    from dataclasses import asdict

    from gnn_encoder.judging.agreement import agreement, finite
    from gnn_encoder.judging.order import Place
    from gnn_encoder.judging.people import Comparison
    from gnn_encoder.judging.pool import ORDER, read_as
    from gnn_encoder.report.judged import people_lines

    grades = {(j.query_id, j.passage_id): j.grade for j in judgements}
    comparison = Comparison(pool, read_as(output / ORDER, Place), grades, settings.relevant, settings.measures)
    decided = comparison.decided(people)
    agreed = agreement(judgements, people.grades, settings.relevant, are_grades=True)
    facts: dict[str, Any] = {"grades": len(people.grades), "skipped": len(people.skipped)}
    facts |= {"agreement": asdict(agreed) if agreed else None, "decided": finite(asdict(decided))}
    return facts, people_lines(decided, len(people.grades), agreed, list(pool.hits))


def _settings(overrides: Sequence[str]) -> "Judge":
    import pydantic
    import yaml

    from gnn_encoder.settings.judging import Judge
    from gnn_encoder.settings.presets import read_yaml
    from gnn_encoder.settings.values import described, known_names

    values: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or key not in Judge.model_fields:
            raise UserError(f"--set {override}: write KEY=VALUE: {known_names(key, Judge.model_fields)}")
        try:
            values[key] = read_yaml(value)
        except yaml.YAMLError:
            raise UserError(f"--set {key}: not a YAML value") from None
    try:
        return Judge.model_validate(values)
    except pydantic.ValidationError as error:
        raise UserError(f"--set: {described(error)}") from None


def _read_queries(path: Path, qrels: Path | None) -> Queries:
    """Returns the queries of a file, and labels of them."""
    from gnn_encoder.artifacts.texts import is_blank, text_lines
    from gnn_encoder.data.query_log import log_query_id
    from gnn_encoder.evaluation.trec import Ids, read_qrels
    from gnn_encoder.labels.suggestions import read_log

    if path.suffix != ".jsonl":
        if qrels:
            raise UserError("--qrels needs the ids of queries: give --queries as BEIR's queries.jsonl")
        return Queries({log_query_id(text): text for text in read_log(path)}, {})
    texts: dict[str, str] = {}
    try:
        for number, line in text_lines(path):
            record = json.loads(line) if line.strip() else None
            if record is None:
                continue
            query_id, text = (record.get(name) if isinstance(record, dict) else None for name in ("_id", "text"))
            query_id = str(query_id) if type(query_id) is int else query_id
            if not isinstance(query_id, str) or not isinstance(text, str) or is_blank(text) or query_id in texts:
                raise UserError(f'{path} line {number}: write {{"_id": …, "text": …}}, each id once')
            texts[query_id] = text
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}): give BEIR's queries.jsonl") from None
    if not texts:
        raise UserError(f"{path} holds no query: write one a line")
    if not qrels:
        return Queries(texts, {})
    query_ids, passage_ids = Ids(), Ids()
    labels = read_qrels(qrels, query_ids, passage_ids)
    query_of, passage_of = query_ids.column().to_pylist(), passage_ids.column().to_pylist()
    columns = zip(labels.query.tolist(), labels.passage.tolist(), labels.relevance.tolist(), strict=True)
    human = {(query_of[q], passage_of[p]): relevance for q, p, relevance in columns if query_of[q] in texts}
    if not human:
        raise UserError(f"{qrels} has no label of a query in {path}: are the ids the same?")
    return Queries(texts, human)


def _of_dataset(path: Path, split: str) -> Queries:
    """Returns a split's queries and their labels by people: those of a log's clicks, or of a generator, are none."""
    import numpy as np

    from gnn_encoder.artifacts import Dataset

    data = Dataset(path)
    rows, judged = data.query_rows(split), data.judged(split)
    if not len(rows):
        raise UserError(f"{path} has no {split} query: name another --split, or give --queries")
    if data.traffic is not None:
        judged = judged.where(data.traffic[judged.query] == 0)
    ids, passages = data.queries.column("query_id").to_pylist(), data.judged_ids().to_pylist()
    judged = judged.where(~np.isin(judged.query, data.written_rows(split)))
    labels = zip(judged.query.tolist(), judged.passage.tolist(), judged.relevance.tolist(), strict=True)
    alike = rows[data.identical[rows] >= 0]
    return Queries(
        dict(zip((ids[row] for row in rows.tolist()), data.query_texts(rows), strict=True)),
        {(ids[query], passages[passage]): relevance for query, passage, relevance in labels},
        {
            ids[row]: passages[passage]
            for row, passage in zip(alike.tolist(), data.identical[alike].tolist(), strict=True)
        },
    )


def _drawn(to_judge: Queries, settings: "Judge", bundles: int) -> dict[str, str]:
    """Returns the queries that are judged, in their order: all, or a draw that no label influences."""
    import numpy as np

    limits = [settings.max_queries or len(to_judge.texts)]
    if settings.max_calls:
        limits.append(settings.max_calls // (settings.depth * bundles))
    if min(limits) < 1:
        raise UserError(f"max_calls = {settings.max_calls}: a query takes up to {settings.depth * bundles}")
    order = np.random.default_rng(settings.seed).permutation(len(to_judge.texts))[: min(limits)]
    texts = list(to_judge.texts.items())
    return dict(texts[number] for number in np.sort(order).tolist())


def _pooled(
    systems: "Mapping[str, Retriever]", drawn: Mapping[str, str], to_judge: Queries, depth: int
) -> "tuple[list[Pair], dict[str, list[list[str]]], list[PooledQuery]]":
    """Returns the pairs of all systems' first hits, each once, each system's hits of each query, and the pool."""
    from gnn_encoder.artifacts.passages import passage_text
    from gnn_encoder.judging.grading import Pair
    from gnn_encoder.judging.pool import PooledPassage, pooled

    pairs: dict[tuple[str, str], Pair] = {}
    texts: dict[str, PooledPassage] = {}
    hits: dict[str, list[list[str]]] = {}
    for system, retriever in systems.items():
        ranked = retriever.search(list(drawn.values()), depth + bool(to_judge.left_out))
        hits[system] = []
        for (query_id, query), of_query in zip(drawn.items(), ranked, strict=True):
            others = [hit for hit in of_query if hit.passage_id != to_judge.left_out.get(query_id)][:depth]
            hits[system].append([hit.passage_id for hit in others])
            for hit in others:
                texts.setdefault(hit.passage_id, PooledPassage(hit.passage_id, hit.title, hit.text))
                text = passage_text(hit.title, hit.text)
                pairs.setdefault((query_id, hit.passage_id), Pair(query_id, query, hit.passage_id, text))
    position = {query_id: number for number, query_id in enumerate(drawn)}
    return sorted(pairs.values(), key=lambda pair: position[pair.query_id]), hits, [*pooled(drawn, hits, texts)]
