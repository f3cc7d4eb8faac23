"""Shrinking of a failing case: items are deleted and simplified as long as the difference remains."""

import copy
from collections.abc import Callable, Iterator

from hw.isa.disassembler import disassemble
from hw.isa.enums import Unit
from tests.support.program_gen.fuse import independent
from tests.support.program_gen.generator import Case
from tests.support.program_gen.items import Group, Issue, Item, Pair, Scalar, Stop


def shrink(case: Case, fails: Callable[[Case], bool], budget: int = 400) -> Case:
    """Return the smallest case for which `fails` returns True, as found within `budget` runs."""
    changed = True
    while changed and budget > 0:
        changed = False
        for variant in variants(case):
            if not _sound(variant):
                continue
            budget -= 1
            if budget <= 0:
                break
            if fails(variant):
                case, changed = variant, True
                break
    return case


def variants(case: Case) -> Iterator[Case]:
    """Yield smaller cases, starting with the largest reductions."""
    for index in reversed(range(1, len(case.macros))):
        yield _edit(case, lambda c, i=index: c.macros.pop(i))
    used = {macro.program for macro in case.macros}
    for number, program in enumerate(case.programs):
        if number and number in used:
            for path in _paths(program.body):
                yield _edit(case, lambda c, n=number, p=path: _delete(c.programs[n].body, p))
    for number, program in enumerate(case.programs):
        if number and number in used:
            for path in _paths(program.body):
                yield from _simpler(case, number, path)
    for index, macro in enumerate(case.macros):
        if macro.decoys:
            yield _edit(case, lambda c, i=index: c.macros[i].decoys.clear())


def _sound(case: Case) -> bool:
    """Return True if no FUSE command reads an address that it also writes."""
    return all(
        command.unit != Unit.FUSE or independent(case.config, command)
        for program in case.programs
        for command in _all_commands(program.body)
    )


def _all_commands(body: list[Item]) -> Iterator[Issue]:
    for item in body:
        if isinstance(item, Group):
            yield from _all_commands(item.body)
        elif isinstance(item, Issue | Pair | Stop):
            yield from _commands(item)


def _edit(case: Case, change: Callable[[Case], object]) -> Case:
    other = copy.deepcopy(case)
    change(other)
    return other


def _paths(body: list[Item], prefix: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    for index in reversed(range(len(body))):
        yield (*prefix, index)
        item = body[index]
        if isinstance(item, Group):
            yield from _paths(item.body, (*prefix, index))


def _at(body: list[Item], path: tuple[int, ...]) -> tuple[list[Item], int]:
    for index in path[:-1]:
        group = body[index]
        assert isinstance(group, Group)
        body = group.body
    return body, path[-1]


def _delete(body: list[Item], path: tuple[int, ...]) -> None:
    holder, index = _at(body, path)
    del holder[index]


def _simpler(case: Case, number: int, path: tuple[int, ...]) -> Iterator[Case]:
    holder, index = _at(case.programs[number].body, path)
    item = holder[index]

    def edit(change: Callable[[Item], object]) -> Case:
        def apply(c: Case) -> None:
            inner, i = _at(c.programs[number].body, path)
            change(inner[i])

        return _edit(case, apply)

    if isinstance(item, Scalar):
        for i in range(len(item.code)):
            yield edit(lambda x, i=i: _drop(x, i))
    if isinstance(item, Group) and item.count > 1:
        yield edit(lambda g: setattr(g, "count", 1))
    commands = [item] if isinstance(item, Issue) else []
    if isinstance(item, Pair):
        commands = item.commands
    if isinstance(item, Stop):
        commands = item.blocked
    for i, command in enumerate(commands):
        for name, value in command.values.items():
            for smaller in _smaller(name, value):
                yield edit(lambda x, i=i, n=name, v=smaller: _commands(x)[i].values.__setitem__(n, v))


def _drop(item: Item, index: int) -> None:
    assert isinstance(item, Scalar)
    del item.code[index]


def _commands(item: Item) -> list[Issue]:
    if isinstance(item, Issue):
        return [item]
    return item.commands if isinstance(item, Pair) else item.blocked  # pyright: ignore


def _smaller(name: str, value: int) -> list[int]:
    """Return simpler values of a field, but none for addresses, since a moved command may leave its ranges."""
    if name in ("dst", "dram", "src", "dw_len", "dw_lead") or name.endswith("base"):
        return []
    if name in ("len", "taps", "groups") or name.endswith("count"):
        return [v for v in (1, value // 2) if 1 <= v < value]
    return [0] if value else []


def listing(case: Case) -> str:
    """Return the case as a string: macro-instructions and assembly."""
    library, programs = case.render()
    lines = [f"n={case.config.n} seed={case.seed}"]
    for index, macro in enumerate(case.macros):
        what = f"header {macro.header:#x}" if macro.header is not None else f"program{macro.program}"
        what += " unbound" * macro.unbound + " segment invalid" * macro.invalid
        lines.append(f"macro {index}: {what} tag {macro.tag} operands {macro.operands}")
    lines.append(disassemble(library))
    used = {macro.program for macro in case.macros}
    lines += [disassemble(p) for number, p in enumerate(programs) if number in used]
    return "\n".join(lines)
