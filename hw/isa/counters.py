"""Performance counters of 64 bits, with one set per tag; all counters are always active.

A counter belongs to a group. All events of a group in one cycle have one tag: the tag of the command that caused them,
or the sequencer's current tag if there is no command. In every cycle each counter grows by an increment of `width`
bits.
"""

from dataclasses import dataclass

#: Maximum number of scratchpad banks; each bank has counters.
SP_BANKS_MAX = 8
#: Mutually exclusive causes of the cycles of the array; their counts add up to the number of cycles.
CAUSES = (
    "useful",
    "fill_drain",
    "weight_shift",
    "wait_weights",
    "wait_activations",
    "wait_accumulator",
    "wait_fuse",
    "wait_bus",
    "wait_sequencer",
    "idle",
)


@dataclass(frozen=True)
class Counter:
    """A performance counter.

    Parameters
    ----------
    name : str
        Unique name of the counter.
    group : str
        Component whose current tag applies to the events, one of GROUPS.
    width : int
        Width in bits of the increment of one cycle.
    architectural : bool
        True if the value is the same on every device (RTL, golden model) for race-free programs.
    doc : str
        One-line description for the reference page.
    """

    name: str
    group: str
    width: int = 1
    architectural: bool = False
    doc: str = ""


def _per_bank(kind: str, width: int, text: str) -> list[Counter]:
    return [
        Counter(f"sp_{kind}_bank{b}", "seq", width, False, f"{text} scratchpad bank {b}")
        for b in range(SP_BANKS_MAX)
    ]


def _unit(group: str) -> tuple[Counter, ...]:
    return (
        Counter(f"{group}_busy", group, 1, False, "cycles with a command started and not retired"),
        Counter(f"{group}_stall_empty", group, 1, False, "cycles without a command and with an empty queue"),
        Counter(
            f"{group}_stall_semaphore",
            group,
            1,
            False,
            "cycles without a command, in which the head of the queue cannot start",
        ),
        Counter(f"{group}_stall_bank", group, 1, False, "cycles in which a memory bank refused the unit"),
        Counter(f"{group}_stall_bus", group, 1, False, "cycles in which the unit waited for the bus"),
    )


COUNTERS: tuple[Counter, ...] = (
    *(
        Counter(f"cause_{c}", "matrix", 1, False, f"cycles of the array: {c.replace('_', ' ')}")
        for c in CAUSES
    ),
    *_unit("matrix"),
    Counter(
        "macs_issued",
        "matrix",
        12,
        True,
        "multiply-accumulates of all rows streamed, N*N for each row (wide: 2*N*N; sparse: the products formed)",
    ),
    Counter(
        "macs_useful",
        "matrix",
        12,
        True,
        "those in rows that are not padding (depthwise: of results written) and in active array rows and columns",
    ),
    Counter("matrix_rows", "matrix", 1, True, "activation rows streamed, padding included"),
    Counter("matrix_tiles", "matrix", 1, True, "weight tiles loaded"),
    Counter(
        "matrix_zeros",
        "matrix",
        7,
        True,
        "zero lanes among the activation rows streamed, all N (wide and sparse: 2*N) lanes, padding included",
    ),
    Counter(
        "sparse_rows",
        "matrix",
        1,
        True,
        "activation rows streamed in sparse mode, each of which saves N*N products with weights that are 0",
    ),
    Counter("acc_writes", "matrix", 1, True, "accumulator rows written by the array"),
    Counter("matrix_commands", "matrix_done", 1, True, "commands retired"),
    *_unit("fuse"),
    Counter("fuse_points", "fuse", 1, True, "points"),
    Counter("fuse_results", "fuse", 1, True, "results written"),
    Counter("fuse_scaled", "fuse", 1, True, "points of commands with requantization on"),
    Counter("fuse_tables", "fuse", 1, True, "points of commands with a table lookup"),
    Counter("fuse_residuals", "fuse", 1, True, "points of commands with a residual add"),
    Counter("fuse_reduced", "fuse", 1, True, "points of commands with a reduction"),
    Counter("fuse_saturations", "fuse_out", 7, True, "lanes changed by a clip"),
    Counter("fuse_commands", "fuse_done", 1, True, "commands retired"),
    *_unit("load"),
    Counter("load_bytes", "load", 7, True, "bytes read from DRAM by LOAD and kept"),
    Counter("load_expanded", "load", 7, True, "bytes written to the scratchpad by packed loads"),
    Counter("load_requests", "load", 1, False, "read bursts"),
    Counter("load_beats", "load", 1, False, "read beats"),
    Counter(
        "load_latency",
        "load",
        12,
        False,
        "requests in flight, summed over cycles, which equals the sum of all latencies",
    ),
    Counter("load_commands", "load_done", 1, True, "commands retired"),
    *_unit("store"),
    Counter("store_bytes", "store", 7, True, "bytes written to DRAM by STORE"),
    Counter("store_requests", "store", 1, False, "write bursts"),
    Counter("store_beats", "store", 1, False, "write beats"),
    Counter("store_commands", "store_done", 1, True, "commands retired"),
    Counter("overlap_load_matrix", "seq", 1, False, "cycles in which LOAD and MATRIX were busy"),
    Counter("overlap_matrix_store", "seq", 1, False, "cycles in which MATRIX and STORE were busy"),
    Counter("overlap_all", "seq", 1, False, "cycles in which LOAD, MATRIX and STORE were busy"),
    *_per_bank("reads", 3, "row reads of"),
    *_per_bank("writes", 2, "row writes of"),
    *_per_bank("conflicts", 3, "refused accesses of"),
    Counter("acc_reads", "seq", 2, False, "accumulator rows read"),
    Counter("acc_conflicts", "seq", 2, False, "refused accumulator accesses"),
    Counter("cycles", "seq", 1, False, "cycles"),
    Counter("macros", "seq", 1, True, "macro-instructions dispatched"),
    Counter("micro_scalar", "seq", 1, True, "scalar micro-instructions"),
    Counter("micro_config", "seq", 1, True, "set and clear"),
    Counter("micro_issue", "seq", 1, True, "issue"),
    Counter("micro_control", "seq", 1, True, "control micro-instructions"),
    Counter("micro_sync", "seq", 1, True, "wait and fence"),
    Counter("dispatch_first", "seq", 1, True, "dispatches that selected the first candidate"),
    Counter("dispatch_other", "seq", 1, True, "dispatches that selected a later candidate"),
    Counter("fetch_stalls", "seq", 1, False, "cycles in which a running program waited for an instruction"),
    Counter("queue_stalls", "seq", 1, False, "cycles in which the sequencer waited for a full queue"),
    Counter(
        "sync_stalls", "seq", 1, False, "cycles in which the sequencer waited for a semaphore or a fence"
    ),
    Counter("wis_words", "seq", 1, True, "words written to the instruction store"),
    Counter("wis_loads", "seq", 1, True, "segments that passed their check"),
    Counter("traps", "trap", 1, True, "traps"),
)

#: Components with separate tags: the units, the output of FUSE's pipeline, retirement, the sequencer.
GROUPS = (
    "matrix",
    "matrix_done",
    "fuse",
    "fuse_out",
    "fuse_done",
    "load",
    "load_done",
    "store",
    "store_done",
    "seq",
    "trap",
)

#: Values of the whole machine that are maxima instead of sums: (name, description).
MAXIMA = (
    ("load_in_flight_max", "maximum number of read bursts in flight"),
    ("load_latency_max", "maximum cycles from a read request to its last beat"),
)


def index_of(name: str) -> int:
    """Return the index of the named counter in the register window."""
    for index, counter in enumerate(COUNTERS):
        if counter.name == name:
            return index
    raise ValueError(f"no counter is named {name!r}")
