"""The one exception that is a message to the user, and errors and texts made fit for a terminal."""

import re
from pathlib import Path

CONTROL = dict.fromkeys((*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), " ")
"""C0, C1 and what turns the direction of text: a terminal obeys them, so a passage could change what it shows."""


class UserError(Exception):
    """Something the user can mend: bad input, a wrong setting, a missing file.

    Its text is one line that says what is wrong, where, and what to do. The command line prints
    it without a traceback and exits with code 2; a step hands it to the console the same way.
    """


class Missing(UserError):
    """Nothing is where something was named."""


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
