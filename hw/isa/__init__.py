"""The only definition of every encoding: Python tables in modules that import nothing outside this package.

The RTL's layouts, the assembler, the golden model, the validator and the reference page are derived from these
tables.
"""
