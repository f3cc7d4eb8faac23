"""What language models have in common, wherever they are."""

from typing import Any

from compiler.llm.endpoint.settings import Endpoint
from compiler.tuning.generators.generator import Generator


class LanguageModelGenerator(Generator):
    """A generator that is a language model.

    Attributes
    ----------
    endpoint : Endpoint or None
        Where the model is; None: in this process.
    """

    name = "llm"

    def __init__(self, endpoint: Endpoint | None = None):
        self.endpoint = endpoint

    def check(self) -> None:
        """Say before any work whether it can be asked.

        Raises
        ------
        InputError
            It is none, wants another key, or does not exist.
        WorkError
            It cannot be reached, or fails.
        """

    def document(self) -> dict[str, Any] | None:
        """What was asked and spent; None: it costs nothing."""
        return None
