"""Base class of generators that use a language model."""

from typing import TYPE_CHECKING, Any

from compiler.tuning.generators.generator import Generator

if TYPE_CHECKING:
    from compiler.llm.endpoint.settings import Endpoint


class LanguageModelGenerator(Generator):
    """Generator whose candidates come from a language model, local or remote.

    Attributes
    ----------
    endpoint : Endpoint or None
        Endpoint of a remote model; None if the model runs in this process.
    """

    name = "llm"

    def __init__(self, endpoint: "Endpoint | None" = None):
        self.endpoint = endpoint

    def check(self) -> None:
        """Check that the model can be used; called before any other work.

        Raises
        ------
        InputError
            The endpoint is not a language model server, rejects the key, or does not exist.
        WorkError
            The endpoint cannot be reached or fails.
        """

    def document(self) -> dict[str, Any] | None:
        """Return usage and cost as a JSON document; None for a model without cost."""
        return None
