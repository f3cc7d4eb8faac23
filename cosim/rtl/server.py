"""The cocotb test inside the simulator process: serves a device's requests until told to quit.

Simulated time stands still while it waits for a request, so cycle counts do not depend on the client's speed.
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
from cosim.rtl.model_api import ModelApi

RESET_CYCLES = 8
LOOK_SECONDS = 1.0
#: With this status a process ends that is asked to start anew: the one that it is a fork of makes another.
AGAIN = 75

Reply = tuple[dict[str, Any], bytes]


class Server:
    """Carries out requests; each method named `do_*` is one kind.

    Attributes
    ----------
    parent : int
        Process without which this one is of no use.
    """

    def __init__(self, api: ModelApi) -> None:
        self.api, self.parent = api, os.getppid()
        self._is_fork = False

    async def handle(self, request: dict[str, Any], payload: bytes) -> Reply:
        """Carry out one request; the model's state joins the reply."""
        try:
            header, data = await getattr(self, "do_" + request["do"])(payload, **request["with"])
        except (LookupError, OSError) as error:
            header, data = {"error": str(error)}, b""
        return header | self.api.state(), data

    async def carried_out(self) -> None:
        """Return when the order just placed has been carried out; takes no clock cycle itself."""
        await Timer(1, "step")

    async def do_reset(self, payload: bytes) -> Reply:
        """Reset the chip."""
        self.api.order_reset(RESET_CYCLES)
        await self.carried_out()
        return {}, b""

    async def do_restart(self, payload: bytes) -> Reply:
        """Reset the chip and access registers; what it is then is kept, and is where it starts from the next time.

        This process stays as it is then, and forks of it go on.
        """
        if self._is_fork:
            os._exit(AGAIN)
        await self.do_reset(b"")
        await self.do_registers(payload, 0)
        while self._is_keeper():
            pass
        self._is_fork, self.parent = True, os.getppid()
        self.api.adopted()
        return {}, b""

    def end(self) -> None:
        """End at once if this process is a fork: what a simulation ends with is not its to do."""
        if self._is_fork:
            os._exit(0)

    def _is_keeper(self) -> bool:
        """Fork, and wait until the fork is to be replaced by another one; False in the fork."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        child = os.fork()
        if not child:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            return False
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            signal.sigtimedwait({signal.SIGCHLD}, LOOK_SECONDS)
            if os.getppid() != self.parent:
                os._exit(0)
        status = os.waitstatus_to_exitcode(ended[1])
        if status < 0:  # what became of it becomes of this one
            with contextlib.suppress(OSError):  # some signals cannot be heard
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        if status != AGAIN:
            os._exit(status)
        return True

    async def do_run(self, payload: bytes, cycles: int, stop_on_irq: bool) -> Reply:
        """Let time pass."""
        self.api.order_run(cycles, stop_on_irq)
        await self.carried_out()
        return {}, b""

    async def do_registers(self, payload: bytes, delay_cycles: int) -> Reply:
        """Access registers; the payload is an array of REGISTER_OP each way."""
        ops = self.api.order_registers(payload, delay_cycles)
        await self.carried_out()
        return {}, bytes(ops)

    async def do_timing(self, payload: bytes, latency: int, num: int, den: int) -> Reply:
        """Change the memory model."""
        self.api.dram_timing(latency, num, den)
        return {}, b""

    async def do_faults(self, payload: bytes) -> Reply:
        """Change which addresses answer with errors; the payload is an array of FAULT."""
        self.api.dram_faults(payload)
        return {}, b""

    async def do_traffic(self, payload: bytes) -> Reply:
        """Count what crossed the bus."""
        return {"traffic": self.api.dram_traffic()}, b""

    async def do_read_memory(self, payload: bytes, paths: list[str]) -> Reply:
        """Copy memories out, one after another."""
        return {}, b"".join(self.api.memory(path) for path in paths)

    async def do_write_memory(self, payload: bytes, paths: list[str]) -> Reply:
        """Copy memories in, as they came out."""
        start = 0
        for path in paths:
            storage = self.api.memory(path)
            storage[:] = payload[start : start + len(storage)]
            start += len(storage)
        return {}, b""

    async def do_waves(self, payload: bytes, path: str | None) -> Reply:
        """Start recording waves, or stop."""
        if path is None:
            self.api.waves_stop()
        else:
            self.api.waves_start(path)
        return {}, b""

    async def do_probe(self, payload: bytes, on: bool) -> Reply:
        """What has been recorded, events first; start anew, or stop."""
        events, beats = self.api.probed()
        self.api.probe_record(on)
        return {"events": len(events)}, events + beats

    async def do_coverage(self, payload: bytes, path: str) -> Reply:
        """Write the line counts."""
        self.api.coverage_write(path)
        return {}, b""


def _client_is_there(sock: socket.socket, parent: int) -> bool:
    """Wait for a request. A fork of the client can keep the socket open, so its process is watched too."""
    while not select.select([sock], [], [], LOOK_SECONDS)[0]:
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
        while _client_is_there(sock, server.parent):
            try:
                request, payload = ipc.receive(sock)
                if request["do"] == "quit":
                    break
                header, data = await server.handle(request, payload)
                ipc.send(sock, header, data)
            except (EOFError, BrokenPipeError):
                break
    server.end()
