"""The one exception that is a message to the user, and errors and texts made fit for a terminal."""

import codecs
import re
import sys
from encodings import ascii as ascii_codec
from pathlib import Path

CONTROL = dict.fromkeys((*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), " ")
"""C0, C1 and what turns the direction of text: a terminal obeys them, so a passage could change what it shows."""

NEAREST = dict(zip("–−…→←▸✓✗━─┄·×│█’‘”“", "--.><>+x--..x|#''\"\"", strict=True))
"""Sign that this program prints → ASCII sign of the same width, for a stream whose encoding lacks the first."""
NEAREST_OR_ESCAPED, PLAIN_ASCII = "gnn_encoder.nearest_or_escaped", "gnn_encoder_ascii"
"""Name of an error handler of encodings, and of an encoding."""


class UserError(Exception):
    """Something the user can mend: bad input, a wrong setting, a missing file.

    Its text is one line that says what is wrong, where, and what to do. The command line prints
    it without a traceback and exits with code 2; a step hands it to the console the same way.
    """


class Missing(UserError):
    """Nothing is where something was named."""


class Unreachable(UserError):
    """A service that is asked for something does not give it."""


class Damaged(UserError):
    """A file of an artifact is missing, cut short or changed."""


def expanded(path: str | Path) -> Path:
    """A path of this machine with its `~` expanded.

    Raises:
        UserError: it is the home of an unknown user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no such user (for a folder of that name write ./{path})") from None


def one_line(error: object) -> str:
    """An error's text in one line without passwords, its type where it has no text."""
    return without_password(" ".join(str(error).split())) or type(error).__name__


def printable(text: str) -> str:
    """The text in one line without control characters."""
    return " ".join(text.translate(CONTROL).split())


def without_password(text: str) -> str:
    """The text with `user:password@`, `password=…`, `token=…`, `api_key=…` and the like taken out of its URIs."""
    # A password may hold a slash, so `user:` reaches to the last @; `host:5000/` is no user. Else a slash ends it. A
    # password with a space is followed to its @ where neither a slash nor a quote stands between.
    without_user = re.sub(
        r"//(?:(?![^/\s:@]*:\d{1,5}(?:[/?#,\s]|$))[^/\s:]*:(?:[^\s\"']*|[^/\"'@]*)|[^/\s]*)@", "//", text
    )
    return re.sub(r"(?i)([?&][\w.-]*(?:password|passwd|pwd|token|key|secret|signature)=)[^&\s]*", r"\1…", without_user)


def print_any_text() -> None:
    """Lets stdout and stderr take every character: what their encoding lacks is printed as in `NEAREST`, or escaped.

    By default Python raises UnicodeEncodeError, as for a `–` in a terminal of ISO-8859-1, and for a file's name that is
    no UTF-8 everywhere. Click writes UTF-8 to a stream whose encoding is called ASCII, so ASCII gets another name.
    """
    codecs.register_error(NEAREST_OR_ESCAPED, _nearest_or_escaped)
    codecs.register(_plain_ascii)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):  # what a program has put there may lack it
            named_ascii = codecs.lookup(stream.encoding).name == "ascii"
            reconfigure(encoding=PLAIN_ASCII if named_ascii else None, errors=NEAREST_OR_ESCAPED)


def _nearest_or_escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(
        NEAREST.get(character) or character.encode("ascii", "backslashreplace").decode() for character in lacking
    ), error.end


def _plain_ascii(name: str) -> codecs.CodecInfo | None:
    if name != PLAIN_ASCII:
        return None
    return codecs.CodecInfo(
        ascii_codec.Codec.encode, ascii_codec.Codec.decode, name=name,
        incrementalencoder=ascii_codec.IncrementalEncoder, incrementaldecoder=ascii_codec.IncrementalDecoder,
    )  # fmt: skip
