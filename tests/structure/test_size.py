"""The number of the compiler's files does not exceed a limit that may only be lowered."""

from tests.structure.source_tree import modules

MAX_COMPILER_FILES = 400


def test_number_of_compiler_files() -> None:
    count = sum(name.split(".")[0] == "compiler" for name in modules())
    assert count <= MAX_COMPILER_FILES, f"compiler/ has {count} Python files: merge fragments of one idea"
