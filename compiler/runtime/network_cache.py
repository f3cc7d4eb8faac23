"""Persistent cache of compiled networks."""

import io
import logging
from dataclasses import asdict
from typing import Any

from compiler.cache.content_store import ContentStore
from compiler.cache.digest import name, version
from compiler.cache.model_source import ModelSource
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.package.writer import from_bytes, to_bytes
from hw.config import MlaConfig
from hw.errors import InputError

_log = logging.getLogger(__name__)

_KIND = "network"


class NetworkCache:
    """Cache entry for the network compiled from a model, a hardware configuration and options.

    Parameters
    ----------
    store : ContentStore
        Store that holds the entries.
    source : ModelSource
        The model, identified by its digest.
    config : MlaConfig
        Hardware configuration of the network.
    options : anything that has a digest
        Everything else that the network depends on.
    """

    def __init__(self, store: ContentStore, source: ModelSource, config: MlaConfig, options: Any):
        self.store = store
        self.key = name(version(), source.digest, asdict(config), options)

    def get(self) -> CompiledNetwork | None:
        """Return the cached network; None if it is missing or damaged."""
        found = self.store.get(_KIND, self.key)
        if found is None:
            return None
        try:
            return from_bytes(io.BytesIO(found))
        except InputError as error:
            _log.warning("the cache: %s; compiling again", error)
            return None

    def put(self, network: CompiledNetwork) -> None:
        """Store a network."""
        self.store.put(_KIND, self.key, to_bytes(network, whole=True))
