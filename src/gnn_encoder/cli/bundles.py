"""The commands that use a trained bundle: `search`, `copy`, `explain`, `evaluate`."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, Root, RunDataset, Split
from gnn_encoder.errors import UserError, without_password

if TYPE_CHECKING:
    from gnn_encoder.artifacts import Dataset
    from gnn_encoder.evaluation.documents import Membership

Question = Annotated[str, typer.Argument(help="The query.")]
Named = Annotated[
    str, typer.Option(help="Folder such as ROOT/latest/bundle, s3:// address, or models:/gnn-encoder@champion.")
]
Hits = Annotated[int, typer.Option("-k", min=1, max=1_000_000, help="Number of passages.")]
Depth = Annotated[
    int | None, typer.Option(min=1, max=1_000_000, help="First hits that are re-ranked [as in the run, or 100].")
]
LINES = 4
"""Lines of a passage that `search` shows on a terminal."""
MEASURES = "RR@10 nDCG@10 AP R@100 Judged@10"


def _not_nan(value: float | None) -> float | None:
    """Refuses NaN, which typer's range check accepts."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value


def _share(text: str) -> Any:
    return typer.Option(min=0.0, max=1.0, callback=_not_nan, help=text)


def search(
    question: Question,
    bundle: Named,
    k: Hits = 5,
    fuse: Annotated[
        bool | None,
        typer.Option(
            "--fuse/--no-fuse",
            help="Combine the vectors' scores with BM25's scores, or do not; by default as the run that chose the "
            "bundle recommends.",
        ),
    ] = None,
    weight: Annotated[
        float | None,
        _share("Weight of the vectors' scores with --fuse; by default as tuned by the bundle's evaluation, or 0.5."),
    ] = None,
    rerank: Annotated[
        bool | None,
        typer.Option(
            "--rerank/--no-rerank",
            help="Order the first hits by the bundle's re-ranker, or do not; by default as the run that chose the "
            "bundle recommends.",
        ),
    ] = None,
    depth: Depth = None,
    fields: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="JSON",
            help='Only passages whose fields fit, such as {"product": ["a", "b"], "date": {">=": "2026-01-01"}}.',
        ),
    ] = None,
    min_confidence: Annotated[
        float | None,
        _share(
            "Show no hit rather than an unsure one: of all questions at most the share 1 - this has a wrong first hit."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="On a terminal, show whole passages.")] = False,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Search a trained bundle; show the best passages with their scores, on a terminal the first lines of each."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from rich.console import Console

    from gnn_encoder.artifacts import Bundle
    from gnn_encoder.evaluation.confidence import threshold_of
    from gnn_encoder.retrieval.filters import filter_of
    from gnn_encoder.retrieval.reranking import reranked_by_bundle, reranked_depth, reranker_of
    from gnn_encoder.retrieval.search import ASKED, Searcher, served_weight

    screen, opened = Console(), Bundle.read(_folder(bundle, root))
    above = -math.inf
    if min_confidence is not None:
        above = threshold_of(opened, min_confidence, (fuse, weight, rerank, depth), fields is not None)
    searcher, reranking, depth = Searcher(opened), opened.serving.reranking, depth or reranked_depth(opened)
    if rerank is None:
        rerank = opened.serving.reranks and fuse is None and weight is None
    count = max(k, depth) if rerank else k
    only = searcher.filters.select(filter_of(fields))
    wanted, words = served_weight(searcher.bundle, fuse, weight)
    run = searcher.run(question, count, wanted, only)
    if words:
        screen.print(f"{words}\n", style="dim")
    if not len(run.passage):
        reason = "no passage has a word of the question" + (", and fits the filter" if only else "")
        screen.print(f"no hit: {reason}", highlight=False)
        return
    if rerank:
        run = reranked_by_bundle(opened, reranker_of(opened), ASKED, [question], run, depth)
        summed = (
            f", with {1 - reranking.weight:.2f} of the score of {reranking.first_stage}"
            if reranking and reranking.weight < 1
            else ""
        )
        screen.print(f"the first {min(depth, len(run.passage)):,} hits ordered by the re-ranker{summed}\n", style="dim")
    if run.score[0] <= above:
        screen.print(
            f"no answer: the first hit has a score of {run.score[0]:.4f}, not above {above:.4f}", highlight=False
        )
        return
    for hit in searcher.hits(run.score[:k], run.passage[:k]):
        screen.print(hit.heading(), markup=False, style="bold")
        most = LINES * screen.width - 2 if screen.is_terminal and not full else sys.maxsize
        lines = [line if len(line) <= most else f"{line[:most]} …" for line in hit.body()]
        screen.print("\n".join([*lines, ""]), markup=False, highlight=False)


def copy(
    source: Annotated[str, typer.Argument(help="A folder, or the s3:// address of one.")],
    target: Annotated[str, typer.Argument(help="The s3:// address or folder to copy to.")],
) -> None:
    """Copy a folder, such as data or a bundle, to or from an object store. Readers never see a partial copy."""
    from gnn_encoder.storage import Transfer, get_folder, is_remote, put_folder

    if is_remote(target) and not is_remote(source):
        if not Path(source).is_dir():
            raise UserError(f"{source} is not a folder: name a folder")
        put_folder(Path(source), target, Transfer(f"sending {source}"))
    elif is_remote(source) and not is_remote(target):
        get_folder(source, Path(target), Transfer(f"fetching {source}"), indexed=False)
    else:
        raise UserError("copy from a folder to an s3:// address, or from an s3:// address to a folder")
    typer.echo(f"{source} is at {target}")


def export(
    bundle: Named,
    target: Annotated[
        str,
        typer.Argument(help="Folder to write; for pgvector the database, postgresql://USER:PASSWORD@HOST/DATABASE."),
    ],
    form: Annotated[str, typer.Option("--format", help="sentence-transformers, parquet, lancedb or pgvector.")],
    table: Annotated[str, typer.Option(help="Name of the table of LanceDB or PostgreSQL.")] = "passages",
    index: Annotated[
        bool | None,
        typer.Option(
            "--index/--no-index",
            help="Search the table by an approximate index that finds 99 % of the first hits, or exactly; by default "
            "pgvector has an index and lancedb has none.",
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Send only what changed to a table of an earlier export, if there is one.")
    ] = False,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Write the query encoder or the passage vectors for other programs, and compare the export with the bundle."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from gnn_encoder.artifacts import Bundle
    from gnn_encoder.serving.exports import FORMATS
    from gnn_encoder.serving.exports import export as write
    from gnn_encoder.serving.exports.job import adapter_of
    from gnn_encoder.tracking.progress import Progress

    opened = Bundle.read(_folder(bundle, root))
    result = write(
        opened, form, target, table=table, index=index, update=update, same_encoder=True,
        progress=partial(Progress, "export"),
    )  # fmt: skip
    address = without_password(target)
    reader = FORMATS[form].reader.format(target=address, table=table)
    typer.echo(f"{address} is {opened.system}'s: {result}; {reader}")
    if opened.label_use and opened.label_use.method == "softmax" and form != "sentence-transformers":
        typer.echo("warning: a query memory lifts passages at search, which vectors alone do not show", err=True)
    is_router = form == "sentence-transformers" and adapter_of(opened) is not None
    if opened.fusion_path and not is_router:
        left = "BM25, labelled queries, the query adapter and the fusion, which stay in the bundle"
        typer.echo(f"warning: the export has the vectors alone, without {left}: its ranking is another", err=True)
    if opened.serving.weight not in (None, 1) or opened.serving.reranks:
        ranking = f"a search ranks by {opened.serving.system}"
        typer.echo(f"warning: {ranking}, and the export by vectors alone, without BM25 and re-ranker", err=True)


def explain(
    question: Question,
    bundle: Named,
    k: Hits = 5,
    neighbors: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Training queries per passage, without --rerank.")
    ] = 5,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the explanation as an HTML page.")
    ] = None,
    rerank: Annotated[
        bool, typer.Option("--rerank", help="Explain the score of the bundle's re-ranker, not the graph's effect.")
    ] = False,
    depth: Depth = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Search, and say what each score is made of: training queries, words, a fusion's parts, a re-ranker's.

    Of a GNN-encoder: the training queries in each passage's vector, and scores without the graph; the artifacts that
    the bundle was made from must be in the same parent folder, as in ROOT/latest. All others need the bundle alone.
    --rerank shows a score's parts: of late interaction the query's tokens, of mim, lim and mix_im the passage's
    content and the ten neighbours in its documents that weigh most.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from rich.console import Console

    from gnn_encoder.artifacts import Bundle
    from gnn_encoder.explanation.passages import LEGEND
    from gnn_encoder.explanation.search import explain_parts, explain_reranked, explain_search, show_hit, show_parts
    from gnn_encoder.retrieval.reranking import reranker_of
    from gnn_encoder.retrieval.search import Searcher

    screen, opened = Console(), Bundle.read(_folder(bundle, root))
    by_parts = not rerank and (opened.labels_path is not None or not opened.has_vectors)
    if opened.serving.weight is not None and opened.has_vectors and not rerank:
        screen.print(f"the hits of the vectors alone; a search ranks by {opened.serving.system}\n", style="dim")
    if html and (rerank or by_parts):
        advice = "leave out --html or --rerank" if rerank else f"{bundle} has none, leave out --html"
        raise UserError(f"--html shows the graph's effect: {advice}")
    if rerank or by_parts:
        explained = (
            explain_reranked(Searcher(opened), reranker_of(opened), question, k, depth)
            if rerank
            else explain_parts(Searcher(opened), question, k, neighbors)
        )
        for ranked, parts in explained:
            show_parts(screen, ranked, parts)
        return
    hits = explain_search(Searcher(opened), question, k, neighbors)
    for hit in hits:
        show_hit(screen, hit)
    screen.print(LEGEND, style="dim")
    if html:
        from gnn_encoder.report.page import fill

        page = fill("explanation.html.j2", question=question, bundle=bundle, hits=hits, legend=LEGEND)
        html.write_text(page, encoding="utf-8")
        screen.print(f"page       {html}", markup=False, highlight=False, soft_wrap=True)


def evaluate(
    runs: Annotated[list[Path] | None, typer.Option("--run", help="A system's TREC run file; repeatable.")] = None,
    qrels: Annotated[Path | None, typer.Option(help="Relevance labels for the runs, a TREC qrels file.")] = None,
    bundles: Annotated[list[str] | None, typer.Option("--bundle", help="A bundle, as in `search`; repeatable.")] = None,
    dataset: RunDataset = None,
    split: Split = "test",
    measures: Annotated[
        str,
        typer.Option(
            help="Names of measures as in ir_measures, separated by spaces. Of documents: PRES(doc)@100, R(doc)@100, "
            "AP(doc)@100, and any other with (doc); MAP(D) and PREC(D): of the passages within relevant documents."
        ),
    ] = MEASURES,
    documents: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The document of each passage, for the measures of documents: lines of passage id, tab, document id, "
            "plain or .gz; by default those of --dataset.",
        ),
    ] = None,
    test: Annotated[
        Literal["randomization", "t"], typer.Option(help="Paired two-sided test against the first.")
    ] = "randomization",
    ignore_identical_ids: Annotated[
        bool,
        typer.Option(
            "--ignore-identical-ids",
            help="Leave out hits of --run with their query's own id, as BEIR does and trec_eval does not. For --bundle "
            "the dataset says it (ingest.ignore_identical_ids).",
        ),
    ] = False,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Measure TREC runs (plain or .gz) with qrels, or bundles on a dataset; compare each with the first."""
    from rich.console import Console

    from gnn_encoder.artifacts import Dataset
    from gnn_encoder.evaluation.compare import compare, comparison_table, notes
    from gnn_encoder.evaluation.documents import Membership
    from gnn_encoder.settings.measures import checked_list, of_documents, split_names

    try:
        names = checked_list(split_names(measures))
    except ValueError as error:
        raise UserError(f"--measures {measures!r}: {error}") from None
    membership = Membership.read(documents) if documents else None
    if runs and qrels and not bundles:
        if not membership and dataset:
            membership = Membership.of_dataset(Dataset(dataset), names)
        if not membership and (needing := of_documents(names)):
            raise UserError(f"{', '.join(needing)}: name the file with each passage's document by --documents")
        comparison = compare(runs, qrels, names, membership, test, ignore_identical_ids)
    elif bundles and not runs and not qrels:
        data = Dataset(dataset or root / "latest" / "dataset")
        folders = {name: _folder(name, root) for name in bundles}
        comparison = _compare_bundles(folders, data, split, names, membership, test)
    else:
        raise UserError("evaluate measures --run with --qrels, or --bundle: give one of the two")
    screen = Console()
    screen.print(comparison_table(comparison))
    screen.print("\n".join(notes(comparison)), markup=False, highlight=False)


def _compare_bundles(
    bundles: Mapping[str, Path],
    data: "Dataset",
    split: str,
    measures: Sequence[str],
    membership: "Membership | None",
    test: str,
) -> dict[str, Any]:
    """Compares bundles on the labelled queries of a split, with one bundle in memory at a time.

    The strata of warm and cold queries, and of old and new queries, are compared, too. The first bundle has all
    relevant passages of an old query, and lacks some of a new query.
    """
    import numpy as np
    import pyarrow as pa

    from gnn_encoder.artifacts import Bundle
    from gnn_encoder.evaluation.compare import comparison_of
    from gnn_encoder.evaluation.documents import documents_of
    from gnn_encoder.evaluation.measures import labelled_queries
    from gnn_encoder.evaluation.remarks import data_remarks
    from gnn_encoder.evaluation.strata import old_strata, warm_strata
    from gnn_encoder.evaluation.trec import without_space
    from gnn_encoder.promotion.champion import bundle_figures, earlier_rows, present_rows
    from gnn_encoder.retrieval.search import Searcher
    from gnn_encoder.settings.measures import ALL
    from gnn_encoder.settings.outcome import Evaluate

    labels = data.judged(split)
    labelled = labelled_queries(labels)
    if not len(labelled):
        raise UserError(f"{data.path} has no {split} query with a positive label, so nothing can be measured")
    ids = pa.chunked_array([without_space(data.passages.ids())])
    documents = membership.of(ids, str(data.path), alone=True) if membership else documents_of(data, measures)
    strata = [warm_strata(labels, data.seen_labels)]
    values: dict[str, dict[str, np.ndarray]] = {}
    for name, folder in bundles.items():
        searcher = Searcher(Bundle.read(folder))
        if not values:
            rows, _ = present_rows(searcher.bundle.passages.ids(), data.passages.ids())
            strata.append(old_strata(labels, earlier_rows(rows, data)))
        figures = bundle_figures(searcher, data, split, measures, Evaluate(), documents=documents, strata=strata)
        for stratum, of_queries in figures.items():
            values.setdefault(stratum, {})[name] = of_queries
    of_all = values.pop(ALL)
    unlabelled, count = len(data.query_rows(split)) - len(labelled), len(documents.ids) if documents else None
    return comparison_of(of_all, measures, unlabelled, {}, count, test, values, list(data_remarks(data, split)))


def _folder(bundle: str, root: Path) -> Path:
    from gnn_encoder.promotion.registry import named_bundle

    return named_bundle(bundle, root)
