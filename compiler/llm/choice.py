"""Which language model writes candidates."""

from collections.abc import Callable

from compiler.llm.endpoint.model import EndpointModel
from compiler.llm.endpoint.settings import Endpoint
from hw.errors import InputError


def language_model(
    endpoint: Endpoint | None, say: Callable[[str], None] = lambda _text: None
) -> EndpointModel:
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
        There is no such model.
    """
    if endpoint is None:
        raise InputError(
            "there is no built-in language model yet: give --endpoint URL and --endpoint-model NAME"
        )
    return EndpointModel(endpoint, say)
