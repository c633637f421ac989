"""Turns a source into the canonical dataset in one reading, and counts every problem.

Passages are streamed to Parquet, one batch at a time. Memory also holds each passage's id as Arrow text and line
number (some 20 bytes per passage) and, for a moment, Arrow's hash table of the ids (some 60 bytes per passage): about
0.7 GB for MS MARCO's 8.8 million passages. The hash table finds duplicates and joins labels to rows exactly. Queries
and labels are held as Arrow columns, and so is the structure of data with documents: a few hundred bytes per passage
with long ids of parents (`places`).
"""

from collections.abc import Callable

import numpy as np

from gnn_encoder.artifacts import DatasetWriter, Draft
from gnn_encoder.artifacts.dataset_writer import write_passage_groups
from gnn_encoder.artifacts.fields import kind_of
from gnn_encoder.artifacts.passages import CORPUS
from gnn_encoder.data.copies import SecondReading, passage_groups
from gnn_encoder.data.corpus import Corpus
from gnn_encoder.data.documents import Documents
from gnn_encoder.data.pool import Pool
from gnn_encoder.data.question_counts import question_counts
from gnn_encoder.data.questions import Questions
from gnn_encoder.data.rows import Source
from gnn_encoder.data.validation import SHOWN, DataReport, Kind, Problems, refusal
from gnn_encoder.errors import UserError, printable
from gnn_encoder.settings.foundation import Ingest


def canonicalize(
    source: Source, settings: Ingest, *, draft: Draft | None = None, advance: Callable[[int], None] | None = None
) -> DataReport:
    """Reads a whole source and writes the dataset into a draft; without a draft, only makes the report.

    With a draft, problems raise a UserError, unless `settings.on_bad_rows` is `drop` and leaving rows out is enough.
    `advance` is called with each part of `source.work` that was done.
    """
    drop = settings.on_bad_rows == "drop"
    problems = Problems()
    has_queries = source.has_queries or bool(settings.log)
    if draft and not has_queries and settings.needs != "passages":
        ids = "; ids of passages are FILE#ANCHOR:NUMBER, numbered within a section" * (source.format == "documents")
        raise UserError(
            f"{source.name} has passages but no queries: let them be written, with --generator titles, name a --log, "
            f"or add queries.jsonl and qrels/train.tsv as in a BEIR folder{ids}"
        )
    writer = DatasetWriter(draft) if draft else None
    try:
        corpus = Corpus(source, problems, writer, advance)
        repeated = corpus.find_duplicates()
        if repeated.any() and (drop or not draft):
            # The rows to leave out are known only now, so the source is read again. The first file is overwritten.
            if draft and writer:
                writer.close()
                writer = DatasetWriter(draft)
            corpus = Corpus(source, Problems(), writer, skip=repeated)
        if not len(corpus.ids) and not problems.count(Kind.MISSING_FILE):
            problems.add(Kind.EMPTY_CORPUS, corpus.file or source.name)
        questions = Questions(source, corpus.ids, settings, problems)
        pool = Pool(source, questions, corpus.ids, problems)
        documents = Documents(source, corpus, settings.document_depth, problems) if corpus.places.present else None
        facts, fields = source.facts | pool.facts, corpus.fields.columns()
        if fields is not None:
            facts["fields"] = ", ".join(f"{field.name} ({kind_of(field.type)})" for field in fields.schema)
        remarks = [*source.remarks, *corpus.remarks, *questions.remarks]
        if documents:
            remarks += documents.remarks
        elif settings.document_depth:
            remarks.append(f"document_depth: {settings.document_depth} cut nothing, because the data have no documents")
        report = DataReport(
            source=source.name,
            format=source.format,
            passages=len(corpus.ids),
            **question_counts(questions, len(corpus.ids)),
            passage_words=corpus.mean_words,
            problems=problems.all(),
            structure=documents.counts if documents else None,
            remarks=remarks,
            facts=facts,
        )
        if draft and report.problems and (report.fatal or not drop):
            raise UserError(refusal(source.name, report.problems))
        if writer:
            questions.write(writer)
            pool.write(writer)
            if fields is not None:
                writer.fields(fields)
            if documents:
                documents.write(writer)
    finally:
        if writer:
            writer.close()

    def read_again(reading: SecondReading) -> None:
        if draft:
            reading.read(draft / CORPUS)
        else:
            Corpus(source, Problems(), reading, skip=repeated)

    groups = passage_groups(corpus.sums, read_again, settings.copy_similarity)
    if groups is not None:
        copied = np.flatnonzero(groups != np.arange(len(groups)))
        report.copies = len(copied)
        different = f"{len(groups) - report.copies:,} different texts"
        shown = ", ".join(f"{corpus.ids[r].as_py()!r} = {corpus.ids[groups[r]].as_py()!r}" for r in copied[:SHOWN])
        report.remarks.append(
            f"{len(groups):,} passages have {different} ({printable(shown)}): a copy of a positive is no negative "
            "of the query"
        )
        if draft:
            write_passage_groups(draft, groups)
        if has_queries and questions.needs == "labels" and not report.fatal and not questions.has_negatives(groups):
            problems.add(Kind.NO_NEGATIVE, source.name)
            report.problems = problems.all()
            if draft:
                raise UserError(refusal(source.name, report.problems))
    return report
