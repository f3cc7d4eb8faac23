"""The number of files of the compiler, a bar that only goes down."""

from tests.structure.source_tree import modules

MAX_COMPILER_FILES = 400


def test_compiler_files_do_not_grow_in_number() -> None:
    count = sum(name.split(".")[0] == "compiler" for name in modules())
    assert count <= MAX_COMPILER_FILES, f"compiler/ has {count} Python files: merge fragments of one idea"
