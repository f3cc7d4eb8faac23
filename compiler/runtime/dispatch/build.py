"""Construction of networks with or without dynamic dispatch, depending on the options."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from compiler.codegen.executable import CommandStream
from compiler.options import CompileOptions
from compiler.runtime.compiled import CompiledNetwork
from compiler.runtime.dispatch.batch_sizes import with_sizes
from compiler.runtime.dispatch.skip import with_skip


def dispatched(
    options: CompileOptions,
    build: Callable[[CompileOptions], CompiledNetwork],
    streams: Sequence[CommandStream],
) -> CompiledNetwork:
    """Build the network of a model, with dynamic dispatch if the options request it.

    Parameters
    ----------
    options : CompileOptions
        Options of the compilation.
    build : callable
        Compiles the model without dynamic dispatch.
    streams : sequence of CommandStream
        List to which `build` appends the command streams of stages on the accelerator.

    Raises
    ------
    InputError
        The model cannot be compiled with these options.
    """
    if options.batches:
        return with_sizes(options, build)
    if options.skip is None:
        return build(options)
    network = build(replace(options, single=True, offset=0))
    return with_skip(network, options.skip, streams, options.offset)
