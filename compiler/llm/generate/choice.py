"""Which language model writes candidates."""

from collections.abc import Callable

from compiler.llm.endpoint.model import EndpointModel
from compiler.llm.endpoint.settings import Endpoint
from compiler.llm.generate.author import LanguageModelGenerator
from compiler.llm.generate.lm_generator import LmGenerator


def language_model(
    endpoint: Endpoint | None, say: Callable[[str], None] = lambda _text: None
) -> LanguageModelGenerator:
    """The generator that the method `llm` asks.

    Parameters
    ----------
    endpoint : Endpoint or None
        Where the model is; None: the built-in one.
    say : callable
        Hears why it is asked no more.

    Raises
    ------
    InputError
        The endpoint's key cannot be one, or the file of the built-in model is damaged.
    """
    return LmGenerator() if endpoint is None else EndpointModel(endpoint, say)
