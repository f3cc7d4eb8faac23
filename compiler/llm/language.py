"""The words that the model knows, in the order of their numbers."""

from compiler.llm import changes, describe, numbers
from compiler.llm.vocabulary import Vocabulary

#: Stands where there is nothing.
PAD = "pad"
LANGUAGE = Vocabulary((PAD, *numbers.WORDS, *describe.WORDS, *changes.WORDS))
