"""Folders of Markdown and HTML files: headings are sections, blocks of text are passages, links are citations.

A file is a document with its path in the folder as id. A section's id is FILE#ANCHOR, with the anchor that the HTML
page, or GitHub, gives to the heading. A passage's id is FILE#ANCHOR:NUMBER, numbered from 1 within its section, so a
change of one section leaves the ids of all others; before the first heading it is FILE:NUMBER. A passage's title is the
titles of its sections, joined by " > ". A paragraph, list, table or piece of code is a passage; a long one is cut into
several.

A link to a file leads to its first section, or its first passage where it has none. A link to a folder leads to its
README or index. Links to websites and to files that are no pages cite works that are not in the data. A link to a file
or an anchor that does not exist leads nowhere.

Queries, labels and pools may lie beside the documents as in a BEIR folder: `qrels` and `candidates` hold no documents
if there are .tsv files in them. Files and folders with a name that begins with a dot are not read; folders of installed
packages and folders behind symbolic links are not read either, and a remark names them. Memory holds some thousand
nodes, one file, and Arrow columns of all sections.
"""

import os
import posixpath
import stat
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from gnn_encoder.artifacts.folder import digest_of, sha256
from gnn_encoder.artifacts.texts import is_blank
from gnn_encoder.data.beir import LABEL_FOLDERS, BeirQueries
from gnn_encoder.data.blocks import Anchors, Block, anchor
from gnn_encoder.data.cutting import cut
from gnn_encoder.data.html import html_blocks
from gnn_encoder.data.lines import files_digest
from gnn_encoder.data.markdown import markdown_blocks
from gnn_encoder.data.rows import PLACES, PassageRows, SectionRows
from gnn_encoder.data.validation import SHOWN, Kind, Problems
from gnn_encoder.errors import UserError

PARSERS: dict[str, Callable[[str], Iterator[Block]]] = {
    ".md": markdown_blocks,
    ".markdown": markdown_blocks,
    ".html": html_blocks,
    ".htm": html_blocks,
}
SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__"})
FRONT_PAGES = frozenset({"readme", "index", "_index"})
"""Names, without ending, of the file that a link to a folder leads to."""
LARGEST = 1 << 24
"""Bytes of a file. A parsed page takes some 30 times its size in memory."""
BATCH = 5_000
"""Nodes and names that are joined to Arrow columns. A column takes a kilobyte besides its rows, and a page has few."""
RENAME = "rename it without control characters and in UTF-8"
LONGEST_HEADING = 300
"""Characters. A longer heading is a passage, because a heading's text is repeated in each passage below it. A longer
anchor that an HTML page gives is not part of ids either."""


def label_folders(folder: Path) -> list[str]:
    """The names of the folders in it that hold labels or pools, and no documents."""
    return [
        name for name in LABEL_FOLDERS if any((folder / name).glob("*.tsv")) or any((folder / name).glob("*.tsv.gz"))
    ]


def folders_below(folder: Path) -> Iterator[tuple[list[Path], list[str]]]:
    """Yields the files of a folder and of each folder below, and the names of the folders there that are not read.

    In the order of their paths; without names that begin with a dot, and without `label_folders`.
    """
    apart = [folder / name for name in label_folders(folder)]
    for directory, names, files in os.walk(folder):
        inside = {name: Path(directory, name) for name in sorted(names) if name[0] != "."}
        inside = {name: path for name, path in inside.items() if path not in apart}
        left_out = [name for name, path in inside.items() if name in SKIPPED or path.is_symlink()]
        names[:] = [name for name in inside if name not in left_out]
        yield (
            [Path(directory, name) for name in sorted(files) if name[0] != "."],
            [str(inside[name].relative_to(folder)) for name in left_out],
        )


def markup_files(folder: Path, endings: Container[str] = PARSERS) -> Iterator[Path]:
    """The files with some endings in a folder and the folders below, in the order of their paths."""
    for files, _ in folders_below(folder):
        yield from (path for path in files if path.suffix.lower() in endings and path.is_file())


def first_of(names: Sequence[str]) -> str:
    """The first few names of files or folders, for a remark; a name may have bytes that are no text."""
    shown = (name if name.isprintable() else ascii(name)[1:-1] for name in names[:SHOWN])
    return ", ".join(shown) + ", …" * (len(names) > SHOWN)


class Markup(BeirQueries):
    """A folder of pages."""

    format = "markup"
    citations_may_fail = True
    ids_name_documents = True
    endings: Collection[str] = PARSERS
    """Of the files that are read."""

    def __init__(self, folder: Path) -> None:
        files = list(markup_files(folder, self.endings))
        unnamed = {path: None for path in files if not str(path.relative_to(folder)).isprintable()}
        pages = [path for path in files if path not in unnamed]
        super().__init__(folder, pages, label_folders=label_folders(folder))
        if unread := [name for _, names in folders_below(folder) for name in names]:
            self.remarks.append(
                f"{len(unread):,} folders of packages or behind a symbolic link were not read: {first_of(unread)}"
            )
        for path in unnamed:
            self.leave_out(path)

    def leave_out(self, path: Path) -> None:
        """Says that a file has a name that can be no id.

        Raises:
            UserError: a corpus without one of its pages would be another one.
        """
        raise UserError(f"{str(path)!a}: {RENAME}")

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The passages of some files at a time; `sections` and `anchors` have those of the files that were read."""
        self._sections: list[SectionRows] = []
        self._anchors: list[tuple[pa.Array, pa.Array]] = []
        nodes, work = _Batch(), 0
        for path, name, blocks in self.pages(problems):
            _Page(self, name, blocks, nodes)
            work += path.stat().st_size
            if len(nodes) >= BATCH:
                yield self._joined(nodes, work)
                nodes, work = _Batch(), 0
        yield self._joined(nodes, work)

    def pages(self, problems: Problems) -> Iterator[tuple[Path, str, Iterator[Block]]]:
        """Yields each file that can be read, its name in the folder, and its blocks."""
        for path in self.corpora:
            name = path.relative_to(self.folder).as_posix()
            try:
                size = path.stat().st_size
                data = path.read_bytes() if size <= LARGEST else b""
            except OSError as error:
                problems.add(Kind.UNREADABLE, name, detail=error.strerror or str(error))
                continue
            if size > LARGEST:
                problems.add(Kind.UNREADABLE, name, detail=f"{size:,} bytes; a page has at most {LARGEST:,}")
                continue
            try:
                text = data.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                line = data.count(b"\n", 0, error.start) + 1
                problems.add(Kind.ENCODING, name, line, f"byte 0x{data[error.start]:02x}; the file is not read")
                continue
            yield path, name, PARSERS[path.suffix.lower()](text.replace("\r\n", "\n").replace("\r", "\n"))

    def pieces(self, text: str) -> list[str]:
        """Cuts a block into passages."""
        return cut(text)

    def untitled(self, name: str) -> str:
        """Returns the title of passages outside all sections of a file."""
        return ""

    def _joined(self, nodes: "_Batch", work: int) -> PassageRows:
        """Keeps the sections and names of some pages; returns their passages."""
        passages, sections, names = nodes.passages, nodes.sections, nodes.names
        ids, titles = pa.array(sections.ids, pa.string()), pa.array(sections.titles, pa.string())
        self._sections.append(SectionRows(ids, titles, sections.places(), self.name, sections.lines))
        self._anchors.append((pa.array(names.keys(), pa.string()), pa.array(names.values(), pa.string())))
        places = passages.places()
        return PassageRows(passages.ids, passages.titles, nodes.texts, self.name, passages.lines, work, places)

    def sections(self, problems: Problems) -> Iterator[SectionRows]:
        """The headings of all files."""
        yield from self._sections

    def anchors(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Names of files, folders and places in pages, and the sections or passages that they lead to."""
        yield from self._anchors

    def digest(self) -> str:
        """Hex digest of the paths and contents of the files that are read."""
        files = {path.relative_to(self.folder).as_posix(): _content(path) for path in self.corpora}
        return digest_of({"pages": files, "others": files_digest(self._others)})


def _content(path: Path) -> str:
    """The digest of a file, or why it cannot be read: then its reader says so, too."""
    try:
        return sha256(path)
    except OSError as error:
        return error.strerror or str(error)


class _Page:
    """Adds the nodes of one file to a batch."""

    def __init__(self, source: Markup, name: str, blocks: Iterator[Block], batch: "_Batch") -> None:
        self._source, self._name, self._batch = source, name, batch
        self._anchors, self._counts = Anchors(), Counter[str]()
        self._order = 0
        self._around: list[tuple[int, str, str]] = []
        """Level, anchor and title of the sections around the current block, from the top."""
        self._own_anchors = PARSERS.get(Path(name).suffix.lower()) is html_blocks
        starts = [(nodes, len(nodes.ids)) for nodes in (batch.sections, batch.passages)]
        for block in blocks:
            if block.level and len(block.text) <= LONGEST_HEADING:
                self._add_section(block)
            else:
                self._add_passages(block)
        for nodes, start in starts:
            if len(nodes.ids) > start:
                batch.names.setdefault(name, nodes.ids[start])

    def _add_section(self, block: Block) -> None:
        # A level may be skipped: the parent is the nearest heading before that has a higher rank.
        while self._around and self._around[-1][0] >= block.level:
            self._around.pop()
        if is_blank(block.text):
            return  # a heading without text ends the sections before it, and begins none
        explicit = block.anchors[-1] if block.anchors and self._own_anchors else ""
        preferred = explicit if 0 < len(explicit) <= LONGEST_HEADING else anchor(block.text)
        name = self._anchors.unique(preferred or "section")
        self._add(self._batch.sections, f"{self._name}#{name}", block.text, block.line, block.links)
        self._around.append((block.level, name, block.text))
        for other in block.anchors:
            self._batch.names.setdefault(f"{self._name}#{other}", f"{self._name}#{name}")

    def _add_passages(self, block: Block) -> None:
        title, links = " > ".join(title for _, _, title in self._around), block.links
        title = title or self._source.untitled(self._name)
        section = block.place or (self._around[-1][1] if self._around else "")
        for text in self._source.pieces(block.text):
            self._counts[section] += 1
            fragment = f"{section}:{self._counts[section]}"
            passage = f"{self._name}#{self._anchors.unique(fragment)}" if section else f"{self._name}{fragment}"
            self._add(self._batch.passages, passage, title, block.line, links)
            self._batch.texts.append(text)
            for other in block.anchors:
                self._batch.names.setdefault(f"{self._name}#{other}", passage)
            links = []  # a block's links count once, from its first piece

    def _add(self, nodes: "_Nodes", node: str, title: str, line: int, links: list[str]) -> None:
        nodes.ids.append(node)
        nodes.titles.append(title)
        nodes.lines.append(line)
        nodes.documents.append(self._name)
        nodes.orders.append(self._order)
        self._order += 1
        nodes.parents.append(f"{self._name}#{self._around[-1][1]}" if self._around else None)
        nodes.citations.append([target for link in links if (target := self._target(link)) != self._name])

    def _target(self, link: str) -> str | None:
        """The name of what a link leads to; None: a website, or a file that is no page."""
        try:
            parts = urlsplit(link)
        except ValueError:
            return link
        if parts.scheme or parts.netloc:
            return None
        path, fragment = unquote(parts.path), unquote(parts.fragment)
        if fragment == "top":
            fragment = ""
        if not path:
            return f"{self._name}#{fragment}" if fragment else self._name
        base = "" if path.startswith("/") else posixpath.dirname(self._name)
        path = posixpath.normpath(posixpath.join(base, path.lstrip("/")))
        if path.startswith("../") or path == "..":
            return None
        target = self._source.folder / path
        try:
            mode = target.stat().st_mode
        except (OSError, ValueError):  # no such file, a name that is too long, or one with a null character
            mode = 0
        if stat.S_ISDIR(mode):
            pages = (page for page in _listed(target) if page.stem.lower() in FRONT_PAGES)
            path = next((f"{path}/{page.name}" for page in pages if page.suffix.lower() in self._source.endings), "")
            path = posixpath.normpath(path) if path else ""
        elif stat.S_ISREG(mode) and target.suffix.lower() not in self._source.endings:
            path = ""
        if not path:
            return None
        return f"{path}#{fragment}" if fragment else path


def _listed(folder: Path) -> list[Path]:
    """What a folder holds, by name; nothing if the folder cannot be read, as in `markup_files`."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


class _Nodes:
    def __init__(self) -> None:
        self.documents: list[str] = []
        self.ids: list[str] = []
        self.titles: list[str] = []
        self.lines: list[int] = []
        self.orders: list[int] = []
        self.parents: list[str | None] = []
        self.citations: list[list[str | None]] = []

    def places(self) -> pa.Table:
        """The columns of `PLACES`."""
        none = [None] * len(self.ids)
        columns = [self.documents, self.orders, self.parents, none, none, self.citations]
        return pa.table([pa.array(c, field.type) for c, field in zip(columns, PLACES, strict=True)], schema=PLACES)


class _Batch:
    """The nodes of some files: passages with their texts, sections, and further names of both → their ids."""

    def __init__(self) -> None:
        self.passages, self.sections = _Nodes(), _Nodes()
        self.texts: list[str] = []
        self.names: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.texts) + len(self.sections.ids) + len(self.names)
