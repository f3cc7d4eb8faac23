"""Resets fields that have no effect at a command's counts to their defaults: fewer instructions, more repetition."""

from compiler.commands.commands import BufferRef
from hw.isa.commands import LOAD_WORD, MATRIX_WORD
from hw.isa.enums import Unit

Fields = dict[str, int | BufferRef]

#: Strides that matter only if a count is more than one.
_STRIDES: dict[Unit, dict[str, tuple[str, ...]]] = {
    Unit.LOAD: {"y_count": ("dram_y", "dst_y"), "z_count": ("dram_z", "dst_z")},
    Unit.STORE: {"y_count": ("dram_y", "src_y"), "z_count": ("dram_z", "src_z")},
    Unit.MATRIX: {
        "x_count": ("v_x", "acc_x"),
        "y_count": ("u_y", "acc_y"),
        "kx_count": ("v_kx", "w_kx"),
        "ky_count": ("u_ky", "w_ky"),
        "ic_count": ("a_ic", "w_ic"),
        "oc_count": ("a_oc", "w_oc", "acc_oc"),
    },
    Unit.FUSE: {
        f"{dim}_count": (f"b_{dim}", f"r_{dim}", f"d_{dim}", *more)
        for dim, more in (
            ("wx", ("v_wx",)),
            ("wy", ("u_wy",)),
            ("x", ("v_x",)),
            ("y", ("u_y",)),
            ("n", ("a_n", "p_n")),
        )
    },
}
#: Counts that the stream mode of MATRIX uses in its own way; a transposing LOAD's distance of columns is dst_y.
_STREAM = ("x_count", "y_count", "kx_count", "ky_count", "ic_count")
#: Fields of which 0 means all lanes.
_LANES = {Unit.MATRIX: ("k_rows", "k_tail", "n_cols", "n_tail"), Unit.FUSE: ("lanes", "lanes_tail")}


def simplify_commands(unit: Unit, fields: Fields, n: int) -> Fields:
    """The same command with the fields that change nothing left out."""
    out = dict(fields)
    word = out.get("word", 0)
    stream = unit == Unit.MATRIX and isinstance(word, int) and MATRIX_WORD.unpack(word)["dw"]
    columns = unit == Unit.LOAD and isinstance(word, int) and LOAD_WORD.unpack(word)["transpose"]
    for count, strides in _STRIDES[unit].items():
        if out.get(count, 1) == 1 and not ((stream and count in _STREAM) or (columns and count == "y_count")):
            for name in strides:
                out.pop(name, None)
    for name in _LANES.get(unit, ()):
        if out.get(name) == n:
            out.pop(name)
    return out
