"""The accumulator, a banked memory of int32 rows that the array updates and FUSE reads and writes."""

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import ACC_ADDR_BITS, MlaConfig
from hw.lib.ram import Ram
from hw.memory.ports import AccReadPort, AccWritePort

#: Cycles from an update's request to its partial sums on `psum`.
ACC_UPDATE_LATENCY = 2
#: Cycles from an update's request to the first cycle in which a granted FUSE read returns the new row.
ACC_UPDATE_VISIBLE = 4


class AccUpdatePort(wiring.Signature):
    """Port for row updates by the array, from the array's point of view; one update per cycle, never refused.

    The new row is psum, acc + psum with `add`, or (acc << 8) + psum with `add` and `shift`, where acc is the old row.
    `psum` (n int32) follows ACC_UPDATE_LATENCY cycles after `valid`. Consecutive updates of the same row are
    accumulated correctly.
    """

    def __init__(self, config: MlaConfig):
        super().__init__(
            {
                "valid": Out(1),
                "row": Out(ACC_ADDR_BITS),
                "add": Out(1),
                "shift": Out(1),
                "psum": Out(32 * config.n),
            }
        )


class Accumulator(wiring.Component):
    """Banked memory with rows of n int32 lanes; the high bits of the row number select the bank.

    An update passes through four stages: R reads the row's bank, D selects the bank's data, A adds the partial sums,
    and W writes the row. A read does not yet return the results of the updates of the last three cycles, so these
    results are forwarded: from W to A for the previous cycle, from W to D for two cycles earlier, and from a copy of
    the last row that W wrote for three cycles earlier.

    Latency: a FUSE read returns data ACC_READ_LATENCY cycles after its grant; a FUSE write is visible to reads granted
    one cycle later; an update is visible to reads granted ACC_UPDATE_VISIBLE cycles after its request. Throughput: one
    update, one FUSE read and one FUSE write per cycle. The array has priority: a FUSE access is refused while an update
    uses the same port of the same bank.

    Parameters
    ----------
    config : MlaConfig
        Machine configuration; uses `n`, `acc_bytes`, `acc_banks`.

    Members
    -------
    update : In(AccUpdatePort)
        Row updates by the systolic array.
    fuse_read : In(AccReadPort), fuse_write : In(AccWritePort)
        Read and write port of FUSE.
    reads : Out(2)
        Number of rows read in this cycle.
    conflicts : Out(2)
        Number of FUSE accesses refused in this cycle.
    """

    def __init__(self, config: MlaConfig):
        self.n = config.n
        self.banks = config.acc_banks
        self.bank_rows = config.acc_rows // config.acc_banks
        self.row_bits = (config.acc_rows - 1).bit_length()
        super().__init__(
            {
                "update": In(AccUpdatePort(config)),
                "fuse_read": In(AccReadPort(config)),
                "fuse_write": In(AccWritePort(config)),
                "reads": Out(2),
                "conflicts": Out(2),
            }
        )

    def elaborate(self, platform: object) -> Elaboratable:
        m = Module()
        width = 32 * self.n
        rams = [
            Ram(width=width, depth=self.bank_rows, granularity=32, exclusive=True) for _ in range(self.banks)
        ]
        for b, ram in enumerate(rams):
            m.submodules[f"bank{b}"] = ram

        # Registers of each stage.
        stages = {
            name: {
                "valid": Signal(name=f"{name}_valid"),
                "row": Signal(self.row_bits, name=f"{name}_row", reset_less=True),
            }
            for name in "daw"
        }
        d, a, w = stages["d"], stages["a"], stages["w"]
        row = self.update.row[: self.row_bits]
        m.d.sync += [d["valid"].eq(self.update.valid), a["valid"].eq(d["valid"]), w["valid"].eq(a["valid"])]
        m.d.sync += [d["row"].eq(row), a["row"].eq(d["row"]), w["row"].eq(a["row"])]

        d_add, d_shift, a_add, a_shift = Signal(), Signal(), Signal(), Signal()
        d_near, a_near, d_mid, d_far = Signal(), Signal(), Signal(), Signal()
        m.d.sync += [
            d_add.eq(self.update.add),
            d_shift.eq(self.update.shift),
            a_add.eq(d_add),
            a_shift.eq(d_shift),
            d_near.eq(self.update.add & d["valid"] & (d["row"] == row)),
            a_near.eq(d_near),
            d_mid.eq(a["valid"] & (a["row"] == row)),
            d_far.eq(w["valid"] & (w["row"] == row)),
        ]

        total = [Signal(32, name=f"total{i}", reset_less=True) for i in range(self.n)]
        self._read(m, rams)
        found = self._found(m, rams, d, d_mid, d_far, w["valid"], Cat(total))
        for i, lane in enumerate(total):
            psum, old, addend = (Signal(32, name=f"{name}{i}") for name in ("psum", "old", "addend"))
            operand = Signal(32, name=f"operand{i}", reset_less=True)
            with m.If(d["valid"]):
                m.d.sync += operand.eq(found[32 * i : 32 * i + 32])
            m.d.comb += [
                psum.eq(self.update.psum[32 * i : 32 * i + 32]),
                old.eq(Mux(a_near, lane, operand)),
                addend.eq(Mux(a_add, Mux(a_shift, Cat(Const(0, 8), old[:24]), old), 0)),
            ]
            with m.If(a["valid"]):
                m.d.sync += lane.eq(addend + psum)
        self._write(m, rams, w, Cat(total))
        return m

    def _bank(self, row: Signal) -> Signal:
        """Return the bank of a row number."""
        return row[(self.bank_rows - 1).bit_length() : self.row_bits]

    def _read(self, m: Module, rams: list[Ram]) -> None:
        """Drive the read ports of the banks, and the data and `ready` of FUSE's read port."""
        update_reads, refused, bank_d = Signal(), Signal(), Signal(range(self.banks))
        fuse_bank = self._bank(self.fuse_read.row)
        m.d.comb += [
            update_reads.eq(self.update.valid & self.update.add),
            refused.eq(update_reads & (self._bank(self.update.row) == fuse_bank)),
            self.fuse_read.ready.eq(~refused),
            self.reads.eq(update_reads + (self.fuse_read.valid & ~refused)),
        ]
        for b, ram in enumerate(rams):
            mine = Signal(name=f"update_reads{b}")
            m.d.comb += [
                mine.eq(update_reads & (self._bank(self.update.row) == b)),
                ram.r0_en.eq(mine | (self.fuse_read.valid & (fuse_bank == b))),
                ram.r0_addr.eq(Mux(mine, self.update.row, self.fuse_read.row)),
            ]
        fuse_d = Signal()
        m.d.sync += [bank_d.eq(fuse_bank), fuse_d.eq(self.fuse_read.valid)]
        with m.If(fuse_d), m.Switch(bank_d):
            for b, ram in enumerate(rams):
                with m.Case(b):
                    m.d.sync += self.fuse_read.data.eq(ram.r0_data)

    def _found(
        self, m: Module, rams: list[Ram], d: dict, mid: Signal, far: Signal, written: Signal, total: Cat
    ) -> Signal:
        """Return the value of the row in stage D, including forwarded results."""
        width = 32 * self.n
        found, last = Signal(width), Signal(width, reset_less=True)
        with m.If(written):
            m.d.sync += last.eq(total)
        with m.If(mid):
            m.d.comb += found.eq(total)
        with m.Elif(far):
            m.d.comb += found.eq(last)
        with m.Else(), m.Switch(self._bank(d["row"])):
            for b, ram in enumerate(rams):
                with m.Case(b):
                    m.d.comb += found.eq(ram.r0_data)
        return found

    def _write(self, m: Module, rams: list[Ram], w: dict, total: Cat) -> None:
        """Drive the write port of each bank for stage W of an update, or for FUSE if no update writes to the bank."""
        refused = Signal()
        fuse_bank = self._bank(self.fuse_write.row)
        m.d.comb += [
            refused.eq(w["valid"] & (self._bank(w["row"]) == fuse_bank)),
            self.fuse_write.ready.eq(~refused),
            self.conflicts.eq(
                (self.fuse_write.valid & refused) + (self.fuse_read.valid & ~self.fuse_read.ready)
            ),
        ]
        for b, ram in enumerate(rams):
            mine = Signal(name=f"update_writes{b}")
            m.d.comb += [
                mine.eq(w["valid"] & (self._bank(w["row"]) == b)),
                ram.w_addr.eq(Mux(mine, w["row"], self.fuse_write.row)),
                ram.w_data.eq(Mux(mine, total, self.fuse_write.data)),
            ]
            with m.If(mine):
                m.d.comb += ram.w_en.eq(~0)
            with m.Elif(self.fuse_write.valid & (fuse_bank == b)):
                m.d.comb += ram.w_en.eq(self.fuse_write.mask)
