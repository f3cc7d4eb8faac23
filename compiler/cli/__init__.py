"""The command line `mla`: one verb a module.

A verb module has `SUMMARY` (one line), `EXAMPLE` (a command that works), `add_arguments(parser)` and
`run(args) -> exit status`. What takes long to import is imported inside `run`.
"""
