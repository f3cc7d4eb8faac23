"""Micro-programs as words of the language model, and the grammar that lets it write nothing but programs.

The text

    loop 3, done
    set load.dst, r1, 300
    issue load, signal(matrix:0)
    done: halt

is "loop", "3", "set load.dst", "r1", "x2", "1", "44", "issue load", "signal(matrix:0)", "end", "halt", "stop". An
instruction ends where the next one begins. Branches say how many instructions away they go on. Parts of packed
fields are words as in assembly (`space=param`), or end in `=` before their number; no part at all is the default. A
loop with a body that cannot stand between `loop` and `end` has `to` and the distance to its end.
"""
