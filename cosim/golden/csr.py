"""Control and status registers of the golden model."""

from collections.abc import Callable

from cosim.golden.instruction_store import BAD_CRC, BUS, RefusedError
from cosim.golden.machine import IRQ_CHECK, IRQ_LOADER, IRQ_TRAP, Machine
from hw.bus.register_map import CONFIG_FIELDS, ID, REGISTERS, WINDOW_BASE, WINDOW_STRIDE
from hw.isa.enums import SegmentState, Trap

_MASK = 0xFFFFFFFF
_NAMES = {register.address: register.name for register in REGISTERS}
_OPEN, _CHECK, _FREE, _PIN = 1, 2, 3, 4
_PLAIN = (
    "SEG_SELECT",
    "SEG_BASE",
    "SEG_LENGTH",
    "SEG_CRC",
    "WIS_ADDRESS",
    "WIS_DATA_LO",
    "LOADER_SOURCE",
    "DISPATCH_INDEX",
    "DISPATCH_WORD",
    "COUNTER_SELECT",
    "MAXIMUM_SELECT",
    "IRQ_ENABLE",
)


class ControlRegisters:
    """Registers of the golden model, accessed by address.

    Parameters
    ----------
    machine : Machine
        Machine that the registers control.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self._plain = dict.fromkeys(_PLAIN, 0)
        self._cycle_high = self._counter_high = self._loader_error = 0
        self._read = self._readers()
        self._write = self._writers()

    @property
    def pin(self) -> bool:
        """Level of the interrupt pin."""
        return bool(self.machine.irq & self._plain["IRQ_ENABLE"])

    def read(self, address: int) -> int:
        """Return the value of the register at an address; 0 if there is none."""
        name = _NAMES.get(address & ~3, "")
        if name.startswith("WINDOW"):
            window, part = divmod(address - WINDOW_BASE, WINDOW_STRIDE)
            return self.machine.windows[window][part // 4] if window < self.machine.config.windows else 0
        if name in self._plain:
            return self._plain[name]
        return self._read[name]() & _MASK if name in self._read else 0

    def write(self, address: int, value: int) -> None:
        """Write the register at an address; this has no effect if there is none."""
        name = _NAMES.get(address & ~3, "")
        value &= _MASK
        if name.startswith("WINDOW"):
            self._write_window(address, value)
        elif name in self._plain:
            self._plain[name] = value & ~63 if name == "LOADER_SOURCE" else value
        elif name in self._write:
            self._write[name](value)

    def _readers(self) -> dict[str, Callable[[], int]]:
        m = self.machine
        configuration = {f"CONFIG_{f.upper()}": (lambda f=f: getattr(m.config, f)) for f in CONFIG_FIELDS}
        record = {f"TRAP_{f.upper()}": (lambda f=f: getattr(m.trap, f)) for f in vars(m.trap)}
        return (
            configuration
            | record
            | {
                "ID": lambda: ID,
                "ISA_VERSION": lambda: 1,
                "CONTROL": lambda: m.enabled | m.gated << 1,
                "STATUS": lambda: int(m.idle) | m.trapped << 1 | (m.running is not None) << 2,
                "IRQ_STATUS": lambda: m.irq,
                "RING_BASE": lambda: m.ring.base,
                "RING_LOG2": lambda: m.ring.log2,
                "RING_HEAD": lambda: m.ring.head,
                "RING_TAIL": lambda: m.ring.tail,
                "STEP_LIMIT": lambda: m.step_limit,
                "WATCHDOG": lambda: m.watchdog,
                "CYCLE_LO": self._read_cycle,
                "CYCLE_HI": lambda: self._cycle_high,
                "SEG_STATUS": lambda: m.store.status(self._plain["SEG_SELECT"]),
                "LOADER_ERROR": lambda: self._loader_error,
                "COUNTER_LO": self._read_counter,
                "COUNTER_HI": lambda: self._counter_high,
            }
        )

    def _control(self, value: int) -> None:
        self.machine.enabled, self.machine.gated = bool(value & 1), bool(value & 2)

    def _writers(self) -> dict[str, Callable[[int], None]]:
        m = self.machine

        return {
            "CONTROL": self._control,
            "RESUME": lambda value: self._resume(value),
            "IRQ_STATUS": lambda value: setattr(m, "irq", m.irq & ~value),
            "RING_BASE": lambda value: setattr(m.ring, "base", value & ~255),
            "RING_LOG2": lambda value: setattr(m.ring, "log2", value & 31),
            "RING_HEAD": lambda value: setattr(m.ring, "head", value),
            "STEP_LIMIT": lambda value: setattr(m, "step_limit", value),
            "WATCHDOG": lambda value: setattr(m, "watchdog", value),
            "SEG_COMMAND": self._segment_command,
            "WIS_DATA_HI": self._write_word,
            "LOADER_COMMAND": self._load,
            "DISPATCH_VALUE": lambda value: m.dispatch.write(
                self._plain["DISPATCH_INDEX"], self._plain["DISPATCH_WORD"], value
            ),
            "DISPATCH_COMMIT": lambda value: m.dispatch.commit(),
        }

    def _read_cycle(self) -> int:
        self._cycle_high = self.machine.cycle >> 32 & _MASK
        return self.machine.cycle

    def _read_counter(self) -> int:
        select = self._plain["COUNTER_SELECT"]
        value = self.machine.counting.read(select >> 16, select & 0xFFFF)
        self._counter_high = value >> 32
        return value

    def _write_window(self, address: int, value: int) -> None:
        window, part = divmod(address - WINDOW_BASE, WINDOW_STRIDE)
        if window < self.machine.config.windows:
            parts = list(self.machine.windows[window])
            parts[part // 4] = value & 3 if part == 8 else value
            self.machine.windows[window] = (parts[0], parts[1], parts[2])

    def _resume(self, value: int) -> None:
        if value & 1:
            self.machine.resume()

    def _segment_command(self, value: int) -> None:
        store, index = self.machine.store, self._plain["SEG_SELECT"]
        actions: dict[int, Callable[[], None]] = {
            _OPEN: lambda: store.open(index, self._plain["SEG_BASE"], self._plain["SEG_LENGTH"]),
            _CHECK: lambda: self._check(index),
            _FREE: lambda: store.free(index),
            _PIN: lambda: store.pin(index),
        }
        if value in actions:
            self._attempt(actions[value])

    def _check(self, index: int) -> None:
        store = self.machine.store
        store.check(index, self._plain["SEG_CRC"])
        if store.segments[index].state != SegmentState.VALID:
            raise RefusedError(BAD_CRC)
        self.machine.irq |= IRQ_CHECK
        self.machine.count_host({"wis_loads": 1})

    def _write_word(self, value: int) -> None:
        address = self._plain["WIS_ADDRESS"]
        self._plain["WIS_ADDRESS"] = address + 1 & _MASK

        def write() -> None:
            self.machine.store.write(address, value << 32 | self._plain["WIS_DATA_LO"])
            self.machine.count_host({"wis_words": 1})

        self._attempt(write, quiet=True)

    def _load(self, value: int) -> None:
        if value != 1:
            return
        index, length = self._plain["SEG_SELECT"], self._plain["SEG_LENGTH"]

        def load() -> None:
            self.machine.store.load(index, length, self.machine.memories.dram, self._plain["LOADER_SOURCE"])
            self.machine.count_host({"wis_words": length})
            self._check(index)

        self._attempt(load)

    def _attempt(self, action: Callable[[], None], quiet: bool = False) -> None:
        """Execute a host command; set LOADER_ERROR if it is refused, else clear LOADER_ERROR unless `quiet`."""
        try:
            action()
            self._loader_error = self._loader_error if quiet else 0
        except RefusedError as refused:
            self._loader_error = refused.error
            self.machine.irq |= IRQ_LOADER | (IRQ_CHECK if refused.error in (BAD_CRC, BUS) else 0)
            if refused.trap:
                self._trap_in_use(*refused.trap)

    def _trap_in_use(self, segment: int, address: int) -> None:
        m = self.machine
        if m.trapped:
            m.trap.count += 1
        else:
            m.trap.fill(Trap.WIS_IN_USE, 0, segment, 0, 0, address)
        m.counting.add(0, {"traps": 1})
        m.irq |= IRQ_TRAP
