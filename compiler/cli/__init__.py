"""Command line `mla`, with one module per verb.

A verb module has `SUMMARY` (one line), `EXAMPLE` (a working command), `add_arguments(parser)` and
`run(args) -> exit status`. Modules that take long to import are imported inside `run`.
"""
