"""The language model on the machine, for `mla llm sample --on-machine`."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.llm.along import Along
    from compiler.llm.gpt import Gpt
    from compiler.llm.onchip import ChipGpt

#: Words that questions and answers have room for; texts it is quantized with.
_PLACES, _TEXTS = 128, 8


@dataclass(frozen=True)
class OnMachine:
    """A model on the machine, and the host's beside it."""

    chip: "ChipGpt"
    along: "Along"
    target: str

    def told(self) -> tuple[dict[str, Any], list[str]]:
        """What came of it: as JSON, and in words."""
        chip, tally = self.chip, self.along.tally
        rate = 1e6 * chip.words / max(chip.cycles, 1)
        found = {"words": chip.words, "cycles": chip.cycles, "words_per_million_cycles": rate}
        found |= {"compared": tally.words, "same": tally.same}
        text = (
            f"{chip.words:,} words read and written by {self.target} in {chip.cycles:,} cycles, {rate:.2f} in a "
            f"million; the host finds the same word likeliest for {tally.same} of {tally.words}"
        )
        return {"machine": found}, [text]


@contextmanager
def on_machine(model: "Gpt", args: argparse.Namespace) -> "Iterator[OnMachine]":
    """Compile the model for the machine, and open that."""
    from pathlib import Path

    from compiler.llm.along import Along
    from compiler.llm.corpus.texts import texts
    from compiler.llm.language import LANGUAGE
    from compiler.llm.onchip import ChipGpt
    from compiler.schedule.dram import Dram
    from compiler.util.progress import building, say
    from cosim.rtl.rtl_device import RtlDevice
    from hw.config import MlaConfig, load_target

    dram = Dram(args.dram_latency, args.dram_bytes_per_cycle)

    def opened(config: MlaConfig, size: int) -> RtlDevice:
        rate = dram.bytes_per_cycle or config.n
        return RtlDevice(config, size, latency=dram.latency, bytes_per_cycle=rate, monitor=building)

    say("quantizing and compiling the language model")
    known = [LANGUAGE.encode(text) for text in texts(_TEXTS)]
    chip = ChipGpt(model, load_target(args.target), opened, _PLACES, known, args.answers, dram, say)
    try:
        yield OnMachine(chip, Along(chip, model), Path(args.target).stem)
    finally:
        chip.close()
