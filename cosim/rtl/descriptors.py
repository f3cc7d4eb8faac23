"""File descriptors that child processes inherit."""

import fcntl
import os

FIRST_FREE = 3
"""First descriptor above those of standard input, output and error, which are replaced in every child process."""


def above_standard(descriptor: int) -> int:
    """Return a descriptor of an open file that is higher than the descriptors of the standard streams.

    A new file gets the lowest free descriptor. If a process was started with standard streams closed, like a daemon,
    this may be 0, 1 or 2. A child process could not inherit such a descriptor, since a standard stream would replace
    it.

    Parameters
    ----------
    descriptor : int
        Descriptor of an open file. A descriptor of 0, 1 or 2 is closed after the function has duplicated it.

    Returns
    -------
    int
        Descriptor of the same open file, which is at least FIRST_FREE and is closed on exec.
    """
    if descriptor >= FIRST_FREE:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE)
    os.close(descriptor)
    return moved
