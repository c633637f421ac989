"""The one exception that is a message to the user."""


class UserError(Exception):
    """Something the user can mend: bad input, a wrong setting, a missing file.

    Its text is one line that says what is wrong, where, and what to do. The command line prints
    it without a traceback and exits with code 2; a step hands it to the console the same way.
    """
