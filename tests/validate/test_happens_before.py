"""Tests of the static validator: order of accesses within a call, between calls, and within a command."""

import pytest

from compiler.validate import MacroCall, ValidationError, validate
from hw.config import MlaConfig
from hw.isa.assembler import assemble
from tests.validate.validator_dsl import CONFIG, WINDOWS, proof, rejected

ORDERED = {
    "semaphore": "issue load, signal(store:0)\nissue store, wait(load:0)",
    "sequencer": "issue load, signal(seq:3)\nwait load:3\nissue store",
    "fence": "issue load\nfence load\nissue store",
    "in order": "issue load\nset load.dst, 64\nissue load, signal(store:0)\nissue store, wait(load:0)",
    "through a third unit": (
        "issue load, signal(fuse:0)\nissue fuse, wait(load:0), signal(store:0)\nissue store, wait(fuse:0)"
    ),
    "after an ordered one": (
        "issue load, signal(store:0)\nset store.src, 128\nissue store, wait(load:0)\nset store.src, 0\n"
        "set store.dram, 0x3000\nissue store"
    ),
    "consumer first": "issue store, wait(load:0)\nissue load, signal(store:0)",
    "other bytes": "issue load\nset store.src, 16\nissue store",
}
PREFIX = (
    "set load.dram, 0x1000\nset load.len, 16\nset store.dram, 0x2000\nset store.len, 16\nset fuse.d_base, 8\n"
)


@pytest.mark.parametrize("name", ORDERED)
def test_ordered_accesses_are_accepted(name):
    report = proof(PREFIX + ORDERED[name] + "\nhalt")
    assert report.commands["store"] >= 1
    assert report.regions["dram"]["write"] in ([0x2000, 0x200F], [0x2000, 0x300F])


def test_token_of_an_earlier_command_does_not_order():
    """A token that an earlier load signaled does not order a later load."""
    rejected(
        f"{PREFIX}set load.dst, 64\nissue load, signal(store:0)\nset load.dst, 0\nissue load\n"
        "issue store, wait(load:0) ; <<\nhalt",
        "race",
        text="load->store semaphore",
    )


def test_calls_are_not_ordered_implicitly():
    halves = [f"{PREFIX}issue load\nhalt", f"{PREFIX}issue store\nhalt"]
    with pytest.raises(ValidationError) as caught:
        validate(CONFIG, [MacroCall(assemble(half)) for half in halves], WINDOWS)
    assert (caught.value.kind, caught.value.call) == ("race", 1)
    waiting = f"{PREFIX}issue load\nfence load\nhalt"
    assert validate(CONFIG, [MacroCall(assemble(half)) for half in (waiting, halves[1])], WINDOWS).calls == 2


def test_semaphores_persist_between_calls():
    give, take = f"{PREFIX}issue load, signal(store:0)\nhalt", f"{PREFIX}issue store, wait(load:0)\nhalt"
    assert validate(CONFIG, [MacroCall(assemble(half)) for half in (give, take)], WINDOWS).calls == 2
    with pytest.raises(ValidationError) as caught:  # the host may issue the second call late
        validate(CONFIG, [MacroCall(assemble(half)) for half in (take, give)], WINDOWS)
    assert (caught.value.kind, caught.value.call) == ("deadlock", 0)


@pytest.mark.parametrize(("buffers", "safe"), [(9, True), (8, True), (7, False)])
def test_eight_macro_instructions_in_flight(buffers, safe):
    """A call may reuse the buffers of the eighth call before it, since at most eight calls are in flight."""
    program = assemble(
        f"{PREFIX}set load.dst, op0\nset store.src, op0\nset store.dram, op1\n"
        "issue load, signal(store:0)\nissue store, wait(load:0)\nhalt"
    )
    calls = [MacroCall(program, (index % buffers * 16, 0x2000 + 16 * index)) for index in range(20)]
    if safe:
        assert validate(CONFIG, calls, WINDOWS).calls == len(calls)
        return
    with pytest.raises(ValidationError) as caught:
        validate(CONFIG, calls, WINDOWS)
    assert (caught.value.kind, caught.value.call) == ("race", buffers)


def test_fuse_in_place():
    walk = "set fuse.x_count, 6\nset fuse.a_v, {a}\nset fuse.d_x, {d}\nset fuse.d_base, {base}\n"
    assert proof(walk.format(a=1, d=1, base=0) + "issue fuse\nhalt")
    assert proof(walk.format(a=2, d=1, base=0) + "issue fuse\nhalt")  # operands already read
    rejected(
        walk.format(a=1, d=2, base=0) + "issue fuse ; <<\nhalt",
        "race",
        text="the result of an earlier point of the same command",
    )
    sp = "set fuse.src, a_src=sp\nset fuse.stage, d_dst=sp\nset fuse.lanes, 3\n"
    assert proof(sp + walk.format(a=3, d=3, base=0) + "issue fuse\nhalt")
    rejected(sp + walk.format(a=3, d=3, base=1) + "issue fuse ; <<\nhalt", "race")


def test_proof_report_of_a_loop():
    source = f"{PREFIX}loop 3, end\nissue load, signal(store:0)\nissue store, wait(load:0), signal(load:0, seq:0)\n"
    source += (
        "wait store:0\nissue load, wait(store:0), signal(store:0)\nissue store, wait(load:0), signal(seq:0)\n"
    )
    report = proof(source + "wait store:0\nend: halt", calls=2)
    assert report.to_json() == {
        "calls": 2,
        "ways": 1,
        "instructions": 2 * (5 + 1 + 3 * 6 + 1),
        "commands": {"load": 12, "matrix": 0, "fuse": 0, "store": 12},
        "peak_in_flight": 2,
        "regions": {
            "dram": {"read": [0x1000, 0x100F], "write": [0x2000, 0x200F]},
            "sp": {"read": [0, 15], "write": [0, 15]},
        },
    }
    assert "12 load" in str(report)


def test_limits_of_the_configuration():
    """The validator uses the queue depth and the number of rows of the configuration."""
    source = (
        "loop 3, end\nissue fuse, wait(load:0)\nend: loop 3, done\nissue load, signal(fuse:0)\ndone: halt"
    )
    source = f"set load.dram, 0x1000\n{source}".replace("issue fuse", "set fuse.d_base, 9\nissue fuse")
    assert proof(source)
    shallow = MlaConfig(**{**vars(CONFIG), "queue_depth": 2})
    with pytest.raises(ValidationError) as caught:
        validate(shallow, [MacroCall(assemble(source))], WINDOWS)
    assert caught.value.kind == "deadlock"
