"""Micro-programs as tokens, and the grammar that restricts the language model to valid programs.

The assembly text

    loop 3, done
    set load.dst, r1, 300
    issue load, signal(matrix:0)
    done: halt

is encoded as "loop", "3", "set load.dst", "r1", "x2", "1", "44", "issue load", "signal(matrix:0)", "end", "halt",
"stop". An instruction ends where the next one begins. Branches contain the distance to their target. A part of a
packed field is encoded either as a single token, spelled as in assembly (`space=param`), or as two tokens: one that
ends in `=` and a number. Absent parts have their default values. A loop that cannot be written as `loop` ... `end` is
encoded with `to` and the distance to its end.
"""
