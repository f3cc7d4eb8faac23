"""File descriptors that child processes inherit."""

import fcntl
import os

FIRST_FREE = 3
"""First descriptor above those of standard input, output and error, which are replaced in every child process."""


def above_standard(descriptor: int) -> int:
    """Return a descriptor above those of the standard streams, duplicated if the given descriptor is one of them.

    The system gives a new file the lowest free number: 0, 1 or 2 in a process that was started with that stream closed,
    as daemons are. In a child process, such a descriptor would be replaced by a standard stream.

    Parameters
    ----------
    descriptor : int
        Descriptor of an open file; closed if it is duplicated.

    Returns
    -------
    int
        Descriptor of the same open file, at least FIRST_FREE, that is closed on exec.
    """
    if descriptor >= FIRST_FREE:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE)
    os.close(descriptor)
    return moved
