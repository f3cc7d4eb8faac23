"""The words that the model knows, in the order of their numbers; new ones come last."""

from compiler.llm import asking, changes, describe, edits, numbers, outline
from compiler.llm.assembly import lexicon
from compiler.llm.vocabulary import Vocabulary

#: Stands where there is nothing.
PAD = "pad"
#: Schedules and programs have `end` in common.
LANGUAGE = Vocabulary(
    dict.fromkeys([
        PAD, *numbers.WORDS, *describe.WORDS, *changes.WORDS, *asking.WORDS, *outline.WORDS, *edits.WORDS,
        *lexicon.WORDS,
    ])
)  # fmt: skip
