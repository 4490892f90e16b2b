"""Errors that are the caller's to mend: one sentence that says what is wrong and what to do."""


class UserError(Exception):
    """Shown by the command as one line on stderr with exit status 2, never as a traceback."""
