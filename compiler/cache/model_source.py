"""Models that are read on demand, with graph digests that are cached by file contents."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from compiler.cache.content_store import ContentStore
from compiler.cache.digest import name, version
from compiler.frontends.builder import bind_inputs
from compiler.ir.graph import Graph
from compiler.ir.tensor import Tensor
from compiler.util import checks
from hw.errors import InputError

_KIND = "graph"
#: Suffixes of files that contain the whole model, unless `_ELSEWHERE` occurs in the contents.
_SELF_CONTAINED = (".tflite", ".onnx")
#: Key of an ONNX constant that is stored in an external file.
_ELSEWHERE = b"location"


@dataclass(frozen=True)
class _Facts:
    """Cached properties of a graph: its digest, whether it is a float model, its inputs and its outputs."""

    digest: str
    floating: bool
    inputs: list[tuple[str, list[int], str]]
    outputs: list[tuple[str, list[int], str]]


class ModelSource:
    """Model that is read from its file, or converted, when its graph is first needed.

    Parameters
    ----------
    model : path, Graph, or anything else that `compiler.frontends.model.read_model` accepts
        Model to compile, or the path of its file.
    store : ContentStore or None
        Cache for properties of graphs that are read from files; None: no cache.
    sizes : mapping, optional
        Sizes of symbolic or dynamic dimensions by name. One of them may be a sequence of ascending lengths; the graph
        then has the longest of them.
    example, dynamic_shapes, bind : as for `read_model`
        Arguments of `read_model`, used when the graph is read.

    Raises
    ------
    InputError
        `sizes` is invalid.

    Attributes
    ----------
    lengths : (str, tuple of int) or None
        Name of the dimension with several lengths, and its lengths; None if all sizes are fixed.
    """

    def __init__(
        self,
        model: Path | str | Graph | Any,
        store: ContentStore | None = None,
        *,
        sizes: Mapping[str, int | Sequence[int]] | None = None,
        example: Any = None,
        dynamic_shapes: Any = None,
        bind: Mapping[str, NDArray] | None = None,
    ):
        self.model, self.store = model, store
        fixed, self.lengths = checks.sizes(sizes)
        self.sizes, self.example, self.dynamic_shapes = dict(fixed or {}), example, dynamic_shapes
        self.bind = dict(bind or {})

    @cached_property
    def graph(self) -> Graph:
        """The model's graph.

        Raises
        ------
        InputError
            The file cannot be read.
        """
        if isinstance(self.model, Graph):
            if self.lengths is not None:
                raise InputError(f"sizes: {self.model.name!r} is a graph, whose sizes are fixed")
            return bind_inputs(self.model, self.bind)
        from compiler.frontends.model import read_model

        return read_model(
            self.model,
            self.sizes or None,
            example=self.example,
            dynamic_shapes=self.dynamic_shapes,
            bind=self.bind,
        )

    def at(self, length: int) -> Graph:
        """Return the model's graph for one of its lengths.

        Raises
        ------
        InputError
            The model cannot be read, or its sizes are fixed.
        """
        if self.lengths is None:
            raise InputError("sizes: the model has no dimension with several lengths")
        sizes = self.sizes | {self.lengths[0]: length}
        return ModelSource(
            self.model, sizes=sizes, example=self.example, dynamic_shapes=self.dynamic_shapes, bind=self.bind
        ).graph

    @property
    def rounding(self) -> str:
        """Default rounding of the model."""
        kind = self._kind()
        if kind is not None:
            return "onnxruntime" if kind == ".onnx" else "reference"
        from compiler.frontends.model import default_rounding

        return default_rounding(self.model)

    @property
    def digest(self) -> str:
        """Content digest of the graph including weights."""
        return self._facts.digest

    @property
    def floating(self) -> bool:
        """True if the model is a float model, which the compiler quantizes."""
        return self._facts.floating

    @property
    def inputs(self) -> list[Tensor]:
        """Inputs of the model, without their quantization."""
        return [Tensor(each, tuple(shape), dtype) for each, shape, dtype in self._facts.inputs]

    @property
    def outputs(self) -> list[Tensor]:
        """Outputs of the model, without their quantization."""
        return [Tensor(each, tuple(shape), dtype) for each, shape, dtype in self._facts.outputs]

    @cached_property
    def _facts(self) -> _Facts:
        key = self._key()
        known = None if key is None or self.store is None else self.store.get(_KIND, key)
        if known is not None:
            return _Facts(**json.loads(bytes(known)))
        from compiler.passes import simplify
        from compiler.quantize.plan import is_float

        graph = self.graph
        inputs, outputs = (
            [(each, list(graph.tensors[each].shape), graph.tensors[each].dtype) for each in names]
            for names in (graph.sample_inputs, graph.sample_outputs)
        )
        facts = _Facts(name(graph), is_float(simplify(graph)), inputs, outputs)
        if key is not None and self.store is not None:
            self.store.put(_KIND, key, json.dumps(asdict(facts)).encode())
        return facts

    def _kind(self) -> str | None:
        """Return the suffix of the model file, in lower case; None unless it is in `_SELF_CONTAINED`."""
        suffix = Path(self.model).suffix.lower() if isinstance(self.model, (str, Path)) else None
        return suffix if suffix in _SELF_CONTAINED else None

    def _key(self) -> str | None:
        """Return the cache key of the file's contents; None if the model is not one self-contained file."""
        kind = self._kind()
        if kind is None:
            return None
        path = Path(str(self.model))
        try:
            data = path.read_bytes()
        except OSError:
            return None  # reading the graph reports the error
        if _ELSEWHERE in data:
            return None
        bind = {
            each: (value.dtype.name, list(value.shape), value.tobytes()) for each, value in self.bind.items()
        }
        return name(version(), path.stem, kind, self.sizes, bind, data)
