"""Selects the language model of the search method `llm`."""

from collections.abc import Callable

from compiler.llm.endpoint.model import EndpointModel
from compiler.llm.endpoint.settings import Endpoint
from compiler.llm.generate.author import LanguageModelGenerator
from compiler.llm.generate.lm_generator import LmGenerator


def language_model(
    endpoint: Endpoint | None, say: Callable[[str], None] = lambda _text: None
) -> LanguageModelGenerator:
    """Return the generator for the search method `llm`.

    Parameters
    ----------
    endpoint : Endpoint or None
        Endpoint of a remote model; None for the built-in model.
    say : callable
        Called with the reason when an exhausted budget stops further requests.

    Raises
    ------
    InputError
        The endpoint key is malformed, or the file of the built-in model is damaged.
    """
    return LmGenerator() if endpoint is None else EndpointModel(endpoint, say)
