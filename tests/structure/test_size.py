"""The compiler stays small enough to find one's way in."""

from tests.structure.source_tree import modules

MOST_COMPILER_FILES = 400


def test_compiler_has_at_most_400_files() -> None:
    count = sum(name.split(".")[0] == "compiler" for name in modules())
    assert count <= MOST_COMPILER_FILES, f"compiler/ has {count} Python files: merge what belongs together"
