"""File descriptors that child processes inherit."""

import fcntl
import os

FIRST_FREE = 3
"""The numbers below are standard input, output and error, which every child gets anew."""


def above_standard(descriptor: int) -> int:
    """The descriptor, moved if its number is that of a standard stream.

    The system gives a new file the lowest free number: 0, 1 or 2 in a process that was started with that stream
    closed, as daemons are. A child that inherits it under such a number would have it replaced by its own stream.

    Parameters
    ----------
    descriptor : int
        Open file; closed if it is moved.

    Returns
    -------
    int
        Descriptor of the same open file, at least 3, that is closed on exec.
    """
    if descriptor >= FIRST_FREE:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE)
    os.close(descriptor)
    return moved
