"""Client of a simulator process, which handles its start, requests, unexpected exit and shutdown."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from cosim.device import SimulatorDiedError
from cosim.rtl import ipc
from cosim.rtl.descriptors import above_standard
from cosim.rtl.runner import ModelRunner

QUIT_SECONDS = 10.0
GRACE_SECONDS = 2.0
LOG_LINES = 15
#: Functions that the simulator's Python calls when it starts; all but the first one are cocotb's defaults.
ENTRY_POINTS = (
    "cosim.rtl.without_pytest:omit_pytest",
    "cocotb_tools._coverage:start_cocotb_library_coverage",
    "cocotb.logging:_configure",
    "cocotb._init:init_package_from_simulation",
    "cocotb.regression:_run_regression",
)


class SimulatorProcess:
    """Simulator process that serves requests until it is closed.

    The process runs in a separate session, so that Ctrl-C in a terminal affects only the client. The process ends when
    the client closes the connection or dies. It also ends if an exception such as KeyboardInterrupt interrupts a
    request, because the client could then no longer match replies to requests.

    Parameters
    ----------
    binary : Path
        Path of the simulator, as returned by `build_simulator`.
    dram_fd, dram_bytes : int
        File descriptor and size of the shared memory that holds the DRAM.
    row : int
        Bus width in bytes.
    seed : int
        Seed of the random initial values of state that has no reset; 0 to initialize it with zeros.
    """

    def __init__(self, binary: Path, *, dram_fd: int, dram_bytes: int, row: int, seed: int = 0) -> None:
        self._socket, theirs = socket.socketpair()
        theirs = socket.socket(fileno=above_standard(theirs.detach()))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._turn = threading.Lock()
        environment = ModelRunner().server_environment("cosim.rtl.server") | {
            "MLA_SIM_SOCKET": str(theirs.fileno()),
            "MLA_SIM_DRAM": str(dram_fd),
            "MLA_SIM_DRAM_BYTES": str(dram_bytes),
            "MLA_SIM_ROW": str(row),
            "COCOTB_RESULTS_FILE": os.devnull,
            "COCOTB_REWRITE_ASSERTION_FILES": "",
            "PYGPI_USERS": ",".join(ENTRY_POINTS),
            "COCOTB_LOG_LEVEL": "WARNING",
            "COCOTB_RANDOM_SEED": "1",
        }
        fill = [f"+verilator+seed+{seed}", "+verilator+rand+reset+2"] if seed else []
        with theirs:
            self._process = subprocess.Popen(
                [binary, *fill],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(), dram_fd),
                start_new_session=True,
            )
        self._finalizer = weakref.finalize(self, _end, self._process, self._socket, self._log, os.getpid())

    @property
    def pid(self) -> int:
        """Process id of the simulator."""
        return self._process.pid

    def request(self, do: str, payload: bytes = b"", /, **arguments: Any) -> tuple[dict[str, Any], bytes]:
        """Send one request and wait for its reply.

        Parameters
        ----------
        do : str
            Name of the request, for which `cosim.rtl.server.Server` has a method `do_<name>`.
        payload : bytes
            Binary argument of the request.
        **arguments
            JSON arguments of the request.

        Raises
        ------
        SimulatorDiedError
            The process ended before or during the request.
        """
        self.send(do, payload, **arguments)
        return self.receive()

    def send(self, do: str, payload: bytes = b"", /, **arguments: Any) -> None:
        """Send one request, whose reply `receive` must return before the next; arguments and errors as in `request`."""
        self._turn.acquire()
        try:
            with self._connected():
                ipc.send(self._socket, {"do": do, "with": arguments}, payload)
        except BaseException:
            self._turn.release()
            raise

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Wait for the reply to the request that was sent; raise the errors of `request`."""
        try:
            with self._connected():
                return ipc.receive(self._socket)
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        if not self._finalizer.alive:
            raise SimulatorDiedError("the simulator has been closed")
        try:
            yield
        except (EOFError, BrokenPipeError):
            raise SimulatorDiedError(self._last_words()) from None
        except BaseException:
            self._finalizer()
            raise

    def close(self) -> None:
        """End the process; a second call has no effect."""
        if not self._finalizer.alive:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            ipc.send(self._socket, {"do": "quit"})
            self._process.wait(QUIT_SECONDS)
        self._finalizer()

    def _last_words(self) -> str:
        status = _reaped(self._process)
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        self._log.seek(0)
        log = self._log.read().decode(errors="replace").splitlines()
        lines = [line for line in log if " INFO " not in line][
            -LOG_LINES:
        ]  # cocotb's start message does not explain the exit
        self._finalizer()
        said = ":\n" + "\n".join(lines) if lines else " without a message"
        return f"the simulator process ended, {how}{said}"


def _reaped(process: subprocess.Popen) -> int:
    """Return the exit status of a process that is expected to end; kill the process if it does not end soon."""
    try:
        return process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _end(process: subprocess.Popen, sock: socket.socket, log: IO[bytes], owner: int) -> None:
    """Close the connection to a process, kill it if it has not ended, and collect its exit status."""
    if os.getpid() != owner:  # a fork of the client must not end the simulator
        return
    sock.close()
    process.kill()
    process.wait()
    log.close()
