"""cocotb test inside the simulator process, which serves a device's requests until a request to quit.

Simulated time does not advance while the test waits for a request, so cycle counts do not depend on the client's speed.
"""

import contextlib
import os
import select
import signal
import socket
from typing import Any

import cocotb
from cocotb.triggers import Timer

from cosim.rtl import ipc
from cosim.rtl.model_api import OP_BYTES, ModelApi

RESET_CYCLES = 8
POLL_SECONDS = 1.0
#: Exit status of a fork after a restart request; its parent then forks again.
RESTART_STATUS = 75

Reply = tuple[dict[str, Any], bytes]


class Server:
    """Server of a device's requests; the method `do_x` implements the request `x`.

    Parameters
    ----------
    api : ModelApi
        Interface to the simulated model.

    Attributes
    ----------
    parent : int
        ID of the parent process; this process ends when its parent ends.
    """

    def __init__(self, api: ModelApi) -> None:
        self.api, self.parent = api, os.getppid()
        self._is_fork = self._has_waves = False

    async def handle(self, request: dict[str, Any], payload: bytes) -> Reply:
        """Execute one request; the reply includes the model's state."""
        try:
            header, data = await getattr(self, "do_" + request["do"])(payload, **request["with"])
        except (LookupError, OSError) as error:
            header, data = {"error": str(error)}, b""
        return header | self.api.state(), data

    async def order_done(self) -> None:
        """Wait until the model has executed the last `ModelApi.order_*`; this takes no clock cycle."""
        await Timer(1, "step")

    async def do_reset(self, payload: bytes) -> Reply:
        """Reset the chip."""
        self.api.order_reset(RESET_CYCLES)
        await self.order_done()
        return {}, b""

    async def do_restart(self, payload: bytes) -> Reply:
        """Reset the chip and access registers; later restarts restore the resulting state.

        This process preserves the state, and a fork of it serves the requests that follow.
        """
        if self._is_fork:
            os._exit(RESTART_STATUS)
        await self.do_reset(b"")
        await self.do_registers(payload, 0)
        while self._fork_again():
            pass
        self._is_fork, self.parent = True, os.getppid()
        self.api.adopted()
        return {}, b""

    def end(self) -> None:
        """End immediately, which saves the time in which cocotb, Python and the model end.

        Only a model that has recorded waves must end itself, and forks never do: the original process completes the
        simulation.
        """
        if self._is_fork or not self._has_waves:
            os._exit(0)

    def _fork_again(self) -> bool:
        """Fork this process. Return False in the fork; return True in the parent when the fork has ended and must be
        replaced by a new one.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        child = os.fork()
        if not child:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            return False
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            signal.sigtimedwait({signal.SIGCHLD}, POLL_SECONDS)
            if os.getppid() != self.parent:
                os._exit(0)
        status = os.waitstatus_to_exitcode(ended[1])
        if status < 0:  # end with the same signal as the fork
            with contextlib.suppress(OSError):  # some signals cannot be handled
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        if status != RESTART_STATUS:
            os._exit(status)
        return True

    async def do_run(self, payload: bytes, cycles: int, stop_on_irq: bool) -> Reply:
        """Run the given number of cycles, or fewer if `stop_on_irq` is set and the interrupt is raised."""
        self.api.order_run(cycles, stop_on_irq)
        await self.order_done()
        return {}, b""

    async def do_registers(self, payload: bytes, delay_cycles: int) -> Reply:
        """Read and write registers; payload and reply are arrays of REGISTER_OP."""
        ops = self.api.order_registers(payload, delay_cycles)
        await self.order_done()
        return {}, bytes(ops)

    async def do_groups(self, payload: bytes, sizes: list[int], timeout: int) -> Reply:
        """Access registers in groups of the given sizes; before each but the first, run until the interrupt is high."""
        done, at = b"", 0
        for number, size in enumerate(sizes):
            if number:
                await self.do_run(b"", timeout, stop_on_irq=True)
            part = payload[at : at + size * OP_BYTES]
            done += (await self.do_registers(part, 0))[1]
            at += len(part)
        return {}, done

    async def do_timing(self, payload: bytes, latency: int, num: int, den: int) -> Reply:
        """Set the timing of the DRAM model."""
        self.api.dram_timing(latency, num, den)
        return {}, b""

    async def do_throttle(self, payload: bytes, num: int, den: int) -> Reply:
        """Stall the clock of the chip in num of every den cycles."""
        self.api.throttle(num, den)
        return {}, b""

    async def do_faults(self, payload: bytes) -> Reply:
        """Set the DRAM addresses whose accesses are answered with an error; the payload is an array of FAULT."""
        self.api.dram_faults(payload)
        return {}, b""

    async def do_traffic(self, payload: bytes) -> Reply:
        """Report the bus traffic since the start of the simulation."""
        return {"traffic": self.api.dram_traffic()}, b""

    async def do_read_memory(self, payload: bytes, paths: list[str]) -> Reply:
        """Read the memories with the given paths; the reply is their concatenated contents."""
        return {}, b"".join(self.api.memory(path) for path in paths)

    async def do_write_memory(self, payload: bytes, paths: list[str]) -> Reply:
        """Write the memories with the given paths; the payload is their concatenated contents."""
        start = 0
        for path in paths:
            storage = self.api.memory(path)
            storage[:] = payload[start : start + len(storage)]
            start += len(storage)
        return {}, b""

    async def do_waves(self, payload: bytes, path: str | None) -> Reply:
        """Start recording waves to a file, or stop if `path` is None."""
        if path is None:
            self.api.waves_stop()
        else:
            self._has_waves = True
            self.api.waves_start(path)
        return {}, b""

    async def do_probe(self, payload: bytes, on: bool) -> Reply:
        """Return the probe's recorded events and beats, in this order, and start a new recording if `on` is set, else
        stop.
        """
        events, beats = self.api.probed()
        self.api.probe_record(on)
        return {"events": len(events)}, events + beats

    async def do_coverage(self, payload: bytes, path: str) -> Reply:
        """Write the line coverage measured since the start of the simulation to a file."""
        self.api.coverage_write(path)
        return {}, b""


def _wait_for_request(sock: socket.socket, parent: int) -> bool:
    """Wait for a request; return False if the client has ended, even if its forks still have the socket open."""
    while not select.select([sock], [], [], POLL_SECONDS)[0]:
        if os.getppid() != parent:
            return False
    return True


@cocotb.test()
async def serve(dut: Any) -> None:
    """Serve requests until the client quits, closes the socket or dies."""
    row = int(os.environ["MLA_SIM_ROW"])
    sock = socket.socket(fileno=int(os.environ["MLA_SIM_SOCKET"]))
    api = ModelApi(int(os.environ["MLA_SIM_DRAM"]), int(os.environ["MLA_SIM_DRAM_BYTES"]), row, sock.fileno())
    server = Server(api)
    with sock:
        while _wait_for_request(sock, server.parent):
            try:
                request, payload = ipc.receive(sock)
                if request["do"] == "quit":
                    break
                header, data = await server.handle(request, payload)
                ipc.send(sock, header, data)
            except (EOFError, BrokenPipeError):
                break
    server.end()
