"""Programs that save work or change arithmetic, and are wrong only for some inputs; and texts equal to them."""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.codegen.semaphores import Issued, synchronize
from compiler.options import CompileOptions
from compiler.pipeline import ModelCompiler
from compiler.quantize.ranges import random_samples
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.program_text import program_text
from compiler.schedule.program_override import ProgramText, digest_of
from compiler.tuning.calibration.calibration_networks import CalibrationNetwork, CalibrationOp
from compiler.tuning.edits.edit import get, put
from compiler.tuning.edits.editable_programs import unroll_all, written_program
from compiler.tuning.measure.equivalence import EquivalenceChecker
from compiler.validate.errors import ValidationError
from cosim.status import TrapError
from hw.config import load_target
from hw.errors import InputError
from hw.isa.assembler import AssemblyError
from hw.isa.commands import FUSE_DIMS, PACKED_FIELDS
from hw.isa.enums import DTYPE_BYTES, Unit

#: Layers whose programs are changed.
LAYERS = {
    "softmax 1x1x12": ((1, 1, 12), (CalibrationOp("softmax"),)),
    "softmax 4x4x3": ((4, 4, 3), (CalibrationOp("softmax"),)),
    "norm": ((4, 4, 24), (CalibrationOp("norm"),)),
    "conv": ((6, 6, 20), (CalibrationOp("conv", 12, 3),)),
    "depthwise": ((6, 6, 20), (CalibrationOp("depthwise", 0, 3),)),
    "add": ((6, 6, 20), (CalibrationOp("add"),)),
    "mul": ((6, 6, 20), (CalibrationOp("mul"),)),
    "tanh": ((6, 6, 20), (CalibrationOp("tanh"),)),
    "max_pool": ((6, 6, 20), (CalibrationOp("max_pool", 0, 2, 2),)),
    "mean": ((6, 6, 20), (CalibrationOp("mean"),)),
    "matmul": ((4, 4, 20), (CalibrationOp("matmul", 12),)),
    "conv, conv, max_pool": (
        (6, 6, 8),
        (CalibrationOp("conv", 8, 3), CalibrationOp("conv", 8, 3), CalibrationOp("max_pool", 0, 3, 3)),
    ),
}
#: Layers whose reductions extend over several blocks of lanes, besides those of `LAYERS`.
WIDE_LAYERS = {
    "softmax 1x1x1000": ((1, 1, 1000), (CalibrationOp("softmax"),)),
    "softmax 1x1x200": ((1, 1, 200), (CalibrationOp("softmax"),)),
    "norm 2x2x40": ((2, 2, 40), (CalibrationOp("norm"),)),
    "max_pool 6x6": ((6, 6, 20), (CalibrationOp("max_pool", 0, 6, 6),)),
    "matmul 4x4x40": ((4, 4, 40), (CalibrationOp("matmul", 12),)),
}
#: Changes of fields of each unit's commands by a number; packed fields by their names.
_OFFSETS = {
    Unit.LOAD: {"len": (-1,), "y_count": (-1,), "z_count": (-1,)},
    Unit.STORE: {"len": (-1,), "y_count": (-1,), "z_count": (-1,)},
    Unit.MATRIX: {
        **{f"{name}_count": (-1,) for name in ("x", "y", "kx", "ky", "ic", "oc")},
        "a_zp": (1,),
        "w_zp": (1,),
        "k_tail": (-1,),
        "n_tail": (-1,),
        "dw_len": (-1,),
    },
    Unit.FUSE: {
        **{f"{name}_count": (-1,) for name in ("n", "y", "x", "wy", "wx")},
        **dict.fromkeys(("mult", "zp", "bias", "shifts", "op_shift", "zp_ab", "zp_xr", "r_mult"), (1, -1)),
        **dict.fromkeys(
            ("clip_lo", "r_lo", "post_lo", "post_mult", "post_bias", "post_shift", "x_mult"), (1,)
        ),
        **dict.fromkeys(("clip_hi", "r_hi", "post_hi", "lanes", "lanes_tail", "r_bias", "o_mult"), (-1,)),
    },
}
#: Packed fields that are replaced by other values.
_REPLACED = {
    Unit.MATRIX: {"word": {"accumulate": (0, 1), "shift8": (0,)}},
    Unit.FUSE: {
        "src": {"rounding": (0, 1, 2, 3), "bias_en": (0,), "neg_en": (0,), "op": (0,)},
        "stage": {"table": (0,), "table_slot": (0, 1), "residual": (0,), "table2": (0,), "reduce": (1, 2, 3)},
    },
}


#: Disassembled loop, which ends before the instruction with a certain number.
_LOOP = re.compile(r"(?P<start>\s*loop .*, )(?P<end>\d+)\s*(;.*)?")
#: Function that yields descriptions of changes of a command, and the commands that replace it.
Changes = Callable[[Issued, int], Iterator[tuple[str, list[Issued]]]]


@dataclass(frozen=True)
class Cheat:
    """Network with a program that cheats.

    Parameters
    ----------
    name : str
        Layer and change.
    network : CompiledNetwork
        Network whose schedule contains the text of the program.
    wrong : float
        Fraction of random inputs for which an output is wrong.
    """

    name: str
    network: CompiledNetwork
    wrong: float


class CheatingPrograms:
    """Programs of a layer with one change each.

    Parameters
    ----------
    layer : str
        Name of the layer in `LAYERS` or `WIDE_LAYERS`.
    target : str
        Name of the hardware target.
    inputs : int
        Number of random inputs by which `Cheat.wrong` is determined.
    """

    def __init__(self, layer: str, target: str = "n16", inputs: int = 8):
        shape, ops = (LAYERS | WIDE_LAYERS)[layer]
        graph = CalibrationNetwork(shape, ops).graph(5)
        self.layer = layer
        self.prepared = ModelCompiler(graph, load_target(target), CompileOptions(rounding="reference"))
        self.network = self.prepared.network()
        self.programs = [program for code in self.network.codes for program in code.programs]
        self._samples = random_samples(graph, 11, inputs)
        self._outputs = [self.network(**sample) for sample in self._samples]

    def changes(self, changed: "Changes | None" = None) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the description of each change and the texts that it changes, by the program's name.

        Parameters
        ----------
        changed : Changes or None
            Function that returns the changes of a command for a number of lanes; if None, all simple changes.
        """
        known = unroll_all(self.programs)
        assert known is not None
        for which, program in enumerate(known):
            for at, command in enumerate(program.commands):
                for what, commands in (changed or _changed)(command, self.network.config.n):
                    every = [[*each.commands] for each in known]
                    every[which][at : at + 1] = commands
                    made = [
                        replace(each, commands=tuple(_fresh(own)))
                        for each, own in zip(known, every, strict=True)
                    ]
                    synchronize(self.network.config, [each for one in made for each in one.commands])
                    programs = [written_program(self.network.config, each) for each in made]
                    yield (
                        f"{self.layer}: {program.name} {at}: {command.unit.name.lower()} {what}",
                        {
                            old.name: program_text(new)
                            for old, new in zip(self.programs, programs, strict=True)
                            if old.words != new.words
                        },
                    )

    def with_texts(self, texts: dict[str, str]) -> CompiledNetwork:
        """Return the network with the texts of some programs; raise InputError if they do not assemble."""
        own = {program.name: digest_of(program) for program in self.programs}
        return self.prepared.network(
            replace(
                self.network.schedule,
                programs={name: ProgramText(own[name], text) for name, text in texts.items()},
            )
        )

    def cheat(self, name: str, texts: dict[str, str]) -> Cheat | None:
        """Return the network with changed programs; None if they are not safe."""
        try:
            network = self.with_texts(texts)
            found = [network(**sample) for sample in self._samples]
        except (InputError, ValidationError, TrapError, AssemblyError):
            return None
        wrong = [
            any(not np.array_equal(mine[key], its[key]) for key in its)
            for mine, its in zip(found, self._outputs, strict=True)
        ]
        return Cheat(name, network, sum(wrong) / len(wrong))

    def cheats(self, rng: random.Random | None = None, count: int | None = None) -> Iterator[Cheat]:
        """Yield safe programs that are wrong for at most half of the random inputs: all, or a random selection."""
        changes = list(self.changes())
        for name, texts in (
            changes if rng is None else rng.sample(changes, min(len(changes), count or len(changes)))
        ):
            made = self.cheat(name, texts) if texts else None
            if made is not None and made.wrong <= 0.5:
                yield made

    def refusal(
        self, checker: EquivalenceChecker, cheat: Cheat, rng: random.Random, attempts: int
    ) -> str | None:
        """Return the reason for which a cheat is refused; None if it is accepted and right for the random inputs.

        Further attempts, with texts equal to the refused one, must be refused with the same form, although the checker
        forgets its refusals, and then because it remembers them.
        """
        verdict = checker.check(cheat.network, rng.randrange(100))
        if verdict.difference is None:
            assert cheat.wrong == 0, f"{cheat.name} is accepted ({verdict})"
            return None
        for texts in retries(cheat, rng, attempts):
            checker.refused.clear()
            again = checker.check(self.with_texts(texts), rng.randrange(100))
            assert again.difference is not None and again.form == verdict.form, (cheat.name, texts, again)
        if attempts:
            remembered = checker.check(cheat.network, rng.randrange(100)).difference
            assert "refused before" in (remembered or ""), (cheat.name, remembered)
        return verdict.difference


def retries(cheat: Cheat, rng: random.Random, count: int) -> Iterator[dict[str, str]]:
    """Yield texts of a cheat's programs with additional instructions that have no effect."""
    for _ in range(count):
        yield {name: _padded(text.text, rng) for name, text in cheat.network.schedule.programs.items()}


def _padded(text: str, rng: random.Random) -> str:
    lines = _labelled(text).rstrip().split("\n")
    end = next(at for at, line in enumerate(lines) if line.strip().startswith("halt"))
    start = 1 + max(
        (at for at, line in enumerate(lines) if line.strip().startswith((".name", "fence"))), default=0
    )
    for _ in range(rng.randint(1, 3)):
        line = rng.choice(
            [
                f"    add r15, r0, {rng.randrange(1, 1 << 16)}",
                f"    set fuse.post_mult, {rng.randrange(1 << 16)}",
                f"    set store.dram_z, {rng.randrange(64)}",
            ]
        )
        # Fields are set only behind the last command, where no command uses them.
        lines.insert(end if "set" in line else rng.choice((start, end)), line)
    return "\n".join(lines) + "\n"


def _labelled(text: str) -> str:
    """Return a program's text with labels instead of the numbers of instructions at which loops end."""
    lines, ends = text.rstrip().split("\n"), set[str]()
    for at, line in enumerate(lines):
        if loop := _LOOP.fullmatch(line):
            ends.add(loop["end"])
            lines[at] = f"{loop['start']}end{loop['end']}"
    numbered = [(line, line.rpartition(";")[2].strip()) for line in lines]
    return "\n".join(f"end{number}:\n{line}" if number in ends else line for line, number in numbered) + "\n"


def without_low_half(programs: CheatingPrograms) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the description and the text of a softmax that ignores the low halves of the exponentials."""
    known = unroll_all(programs.programs)
    assert known is not None and len(known) == 1
    stage = PACKED_FIELDS["fuse.stage"]
    changed, found = [], 0
    for each in known[0].commands:
        parts = stage.unpack(get(each, "stage")) if each.unit == Unit.FUSE else {}
        if parts.get("table_wide"):
            high = {"table_wide": 0, "table_slot": parts["table_slot"] + 1}
            each, found = put(each, stage=stage.pack(**parts | high)), found + 1
        changed.append(each)
    assert found >= 2, "the exponentials of the sum and of the results"
    made = replace(known[0], commands=tuple(_fresh(changed)))
    synchronize(programs.network.config, list(made.commands))
    text = program_text(written_program(programs.network.config, made))
    yield f"{programs.layer}: low halves ignored", {made.name: text}


def guarded(text: str, statistic: str, value: int) -> str:
    """Return a program that skips its last command if a statistic has a certain value."""
    lines = text.rstrip().split("\n")
    last = max(at for at, line in enumerate(lines) if line.strip().startswith("issue store"))
    first = last
    while lines[first - 1].strip().startswith("set store"):
        first -= 1
    guard = [f"    add r14, r0, {value}", f"    beq %{statistic}, r14, skipped"]
    return (
        "\n".join([*lines[:first], *guard, *lines[first : last + 1], "skipped:", *lines[last + 1 :]]) + "\n"
    )


def _fresh(commands: Sequence[Issued]) -> list[Issued]:
    """Return copies of commands without semaphores."""
    return [Issued(each.unit, each.layer, each.values, each.region) for each in commands]


def _changed(command: Issued, _: int) -> Iterator[tuple[str, list[Issued]]]:
    """Yield the description of each change of a command, and the commands that replace it."""
    yield "omitted", []
    for name, offsets in _OFFSETS[command.unit].items():
        for offset in offsets:
            try:
                yield f"{name} {offset:+d}", [put(command, **{name: get(command, name) + offset})]
            except ValueError:  # out of range
                continue
    for word, replaced in _REPLACED.get(command.unit, {}).items():
        packed = PACKED_FIELDS[f"{command.unit.name.lower()}.{word}"]
        values = packed.unpack(get(command, word))
        for name, others in replaced.items():
            for value in others:
                if value != values[name]:
                    yield f"{name} = {value}", [put(command, **{word: packed.pack(**values | {name: value})})]


def other_elements(command: Issued, n: int) -> Iterator[tuple[str, list[Issued]]]:
    """Yield changes after which a command reads other elements.

    Parameters
    ----------
    command : Issued
        Command of a program.
    n : int
        Number of lanes of the machine.
    """
    made = {Unit.FUSE: _other_operands, Unit.MATRIX: _other_terms, Unit.STORE: _other_bytes}
    for what, fields in made[command.unit](command, n) if command.unit in made else ():
        try:
            yield what, [put(command, **fields)]
        except ValueError:  # out of range
            continue


def _without_first(command: Issued, count: str, moves: Mapping[str, str]) -> dict[str, int]:
    """Return the fields with which a command skips the first step of a dimension; `moves` has the step of each base."""
    moved: dict[str, int] = {count: get(command, count) - 1}
    for base, step in moves.items():
        moved[base] = get(command, base) + get(command, step)
    return moved


def _reversed(command: Issued, count: str, base: str, step: str) -> dict[str, int]:
    """Return the fields with which a command goes through a dimension of one operand from its end."""
    last = get(command, count) - 1
    return {base: get(command, base) + last * get(command, step), step: -get(command, step)}


def _other_operands(command: Issued, n: int) -> Iterator[tuple[str, dict[str, int]]]:
    stage = PACKED_FIELDS["fuse.stage"].unpack(get(command, "stage"))
    source = PACKED_FIELDS["fuse.src"].unpack(get(command, "src"))
    used = [stream for stream, use in (("b", source["b_src"]), ("r", stage["residual"])) if use]
    tail = FUSE_DIMS[stage["tail_dim"]] if stage["tail_dim"] < len(FUSE_DIMS) else ""
    for dim, base in (("wx", "v0"), ("wy", "u0")):
        count, step = f"{dim}_count", f"{base[0]}_{dim}"
        if get(command, count) < 2 or not (stage["reduce"] or stage["lane_reduce"]):
            continue
        steps = {base: step, **{f"{stream}_base": f"{stream}_{dim}" for stream in used}}
        yield f"first {dim} not reduced", _without_first(command, count, steps)
        full = {"lanes_tail": get(command, "lanes")} if tail == dim else {}
        yield f"last {dim} not reduced", {count: get(command, count) - 1, **full}
        yield f"first {dim} reduced repeatedly", dict.fromkeys(steps.values(), 0)
        if get(command, count) > 2:
            yield (
                f"every second {dim} reduced",
                {
                    count: (get(command, count) + 1) // 2,
                    **{each: 2 * get(command, each) for each in steps.values()},
                },
            )
    lanes = get(command, "lanes") or n
    if stage["lane_reduce"] and lanes > 1 and (tail != "wx" or get(command, "wx_count") > 1):
        tails = {"lanes_tail": min(get(command, "lanes_tail") or n, lanes - 1)} if tail else {}
        yield "last lane not reduced", {"lanes": lanes - 1, **tails}
        rest = get(command, "lanes_tail") or n
        if source["a_src"] and not used and rest > 1:
            first = get(command, "a_base") + DTYPE_BYTES[source["a_dtype"]]
            yield "first lane not reduced", {"a_base": first, "lanes": lanes - 1, "lanes_tail": rest - 1}
    for dim, base in (("x", "v"), ("y", "u")):
        if get(command, f"{dim}_count") > 1 and get(command, f"{base}_{dim}") and get(command, f"a_{base}"):
            yield f"{dim} of A reversed", _reversed(command, f"{dim}_count", f"{base}0", f"{base}_{dim}")
    for stream in used:
        for dim in ("n", "y", "x"):
            if get(command, f"{dim}_count") > 1 and get(command, f"{stream}_{dim}"):
                fields = _reversed(command, f"{dim}_count", f"{stream}_base", f"{stream}_{dim}")
                yield f"{dim} of {stream.upper()} reversed", fields


def _other_terms(command: Issued, n: int) -> Iterator[tuple[str, dict[str, int]]]:
    word = PACKED_FIELDS["matrix.word"].unpack(get(command, "word"))
    stale = PACKED_FIELDS["matrix.word"].pack(**word | {"accumulate": 1})
    if not word["accumulate"]:
        yield "stale accumulators added", {"word": stale}
    if word["dw"]:
        last = word["taps"] * word["groups"] - 1
        step = get(command, "w_row")
        yield "taps reversed", {"w_base": get(command, "w_base") + last * step, "w_row": -step}
        return
    for dim, base, step in (("ic", "a_base", "a_ic"), ("ky", "u0", "u_ky"), ("kx", "v0", "v_kx")):
        if get(command, f"{dim}_count") > 1:
            moves = {base: step, "w_base": f"w_{dim}"}
            yield f"first {dim} not added", _without_first(command, f"{dim}_count", moves)
            yield f"last {dim} not added", {f"{dim}_count": get(command, f"{dim}_count") - 1, "k_tail": 0}
            yield f"weights of {dim} reversed", _reversed(command, f"{dim}_count", "w_base", f"w_{dim}")
    tail = get(command, "k_tail") or get(command, "k_rows") or n
    if tail > 1:
        yield "last channel not added", {"k_tail": tail - 1}
    if tail > 2:
        yield "last channels not added", {"k_tail": tail // 2}


def _other_bytes(command: Issued, _: int) -> Iterator[tuple[str, dict[str, int]]]:
    size = get(command, "len")
    if size > 1:
        yield (
            "first byte not stored",
            {each: get(command, each) + 1 for each in ("src", "dram")} | {"len": size - 1},
        )


def divided_maximum(programs: CheatingPrograms) -> Iterator[tuple[str, dict[str, str], bool]]:
    """Yield divisions of the maximum of a wide softmax, and whether each is right.

    The lanes are reduced in two commands, whose results a third one combines.
    """
    known = unroll_all(programs.programs)
    assert known is not None and len(known) == 1
    commands, packed = known[0].commands, PACKED_FIELDS["fuse.stage"]
    at = next(number for number, each in enumerate(commands) if each.unit == Unit.FUSE)
    whole, blocks = commands[at], get(commands[at], "wx_count")
    half, row, stage = blocks // 2, get(commands[at], "d_base"), packed.unpack(get(commands[at], "stage"))
    full = packed.pack(**stage | {"tail_dim": 7})
    first = put(whole, wx_count=half, stage=full, lanes_tail=0, d_base=row + 1)
    combined = packed.pack(**stage | {"tail_dim": 7, "reduce": stage["lane_reduce"], "lane_reduce": 0})
    source = PACKED_FIELDS["fuse.src"].pack(
        **PACKED_FIELDS["fuse.src"].unpack(get(whole, "src")) | {"a_src": 0}
    )

    def parts(start: int, how: int = 0) -> list[Issued]:
        second = put(whole, wx_count=blocks - start, v0=start, d_base=row + 2)
        last = put(
            whole,
            wx_count=2,
            src=source,
            a_base=row + 1,
            a_u=0,
            a_v=1,
            lanes=1,
            lanes_tail=0,
            stage=packed.pack(**packed.unpack(combined) | ({"reduce": how} if how else {})),
        )
        return [first, second, last]

    for name, changed, right in (
        ("divided", parts(half), True),
        ("divided, a block missing", parts(half + 1), False),
        ("divided, minimum of the parts", parts(half, 3), False),
        ("divided, first part alone", [put(parts(half)[0], d_base=row)], False),
    ):
        made = replace(known[0], commands=tuple(_fresh([*commands[:at], *changed, *commands[at + 1 :]])))
        synchronize(programs.network.config, list(made.commands))
        yield name, {made.name: program_text(written_program(programs.network.config, made))}, right


__all__ = [
    "LAYERS",
    "WIDE_LAYERS",
    "Cheat",
    "CheatingPrograms",
    "divided_maximum",
    "guarded",
    "other_elements",
    "retries",
    "without_low_half",
]
