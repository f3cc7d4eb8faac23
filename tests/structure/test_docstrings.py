"""Docstrings describe every parameter in words, and start with a statement."""

from inspect import cleandoc

from tests.structure.source_tree import TREES, docstrings, parameters

#: Minimum number of words; a shorter description adds little to the parameter's name.
LEAST_WORDS = 3

#: Openings of fragments: of questions, and of phrases that lack a subject or take it from the function's name.
FRAGMENTS = ("What ", "Who ", "Whether ", "Where ", "How ", "Which ", "Of ", "By ", "As ", "It ", "They ")


def test_parameter_descriptions_have_three_words() -> None:
    found = [
        f"{place}: {entry!r}: {description!r}"
        for place, text in docstrings()
        for entry, description in parameters(text)
        if len(description.split()) < LEAST_WORDS
    ]
    assert not found, f"{len(found)} short descriptions:\n" + "\n".join(found)


def test_docstrings_start_with_a_statement() -> None:
    found = [
        f"{place}: {text.splitlines()[0]}"
        for place, text in docstrings((*TREES, "scripts", "examples", "tests"))
        if text.startswith(FRAGMENTS)
    ]
    assert not found, f"{len(found)} fragments:\n" + "\n".join(found)


def test_parsing_of_parameter_sections() -> None:
    text = """Title.

    Parameters
    ----------
    a : int
        One two three.
    b, c
        Short
        one.
    d

    Raises
    ------
    InputError
        For nothing.

    Members
    -------
    e : In(1)
        A port."""
    found = list(parameters(cleandoc(text)))
    assert found == [
        ("a : int", "One two three."),
        ("b, c", "Short one."),
        ("d", ""),
        ("e : In(1)", "A port."),
    ]
