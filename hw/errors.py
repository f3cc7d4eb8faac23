"""The errors that a user can cause or meet, shared by all packages.

Whoever raises one of these writes one clear sentence for the user; the command line prints that sentence
without a traceback and leaves with `exit_status`. Any other exception is a defect of this project.
"""


class MlaError(Exception):
    """Base class of every error meant for the user. The message is one sentence that shows the bad value."""

    exit_status = 1
    """Status with which the command line ends when this error reaches it."""


class InputError(MlaError):
    """What the user passed in is wrong: a file, a name, a size, a configuration."""

    exit_status = 2


class WorkError(MlaError):
    """The input was fine and the work failed: a tool is missing, the disk is full, a process died."""

    exit_status = 1
