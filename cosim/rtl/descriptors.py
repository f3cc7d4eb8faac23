"""File descriptors for inheritance by child processes."""

import fcntl
import os

FIRST_FREE = 3
"""First descriptor above standard input, output and error, which are replaced in every child."""


def above_standard(descriptor: int) -> int:
    """Duplicate a descriptor to a number above the standard streams if it is not above them already.

    The system gives a new file the lowest free number: 0, 1 or 2 in a process that was started with that stream
    closed, as daemons are. In a child, such a descriptor would be replaced by a standard stream.

    Parameters
    ----------
    descriptor : int
        Descriptor of an open file; closed if it is duplicated.

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
