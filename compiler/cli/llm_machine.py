"""Runs the language model on the accelerator, for `mla llm sample --on-machine`."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.llm.evaluate.top1_agreement import AgreementMeter
    from compiler.llm.model.accelerated import ChipGpt
    from compiler.llm.model.numpy_transformer import Gpt

#: Context length in tokens, and number of calibration texts.
CONTEXT_TOKENS, CALIBRATION_TEXTS = 128, 8


@dataclass(frozen=True)
class OnMachine:
    """A model on the accelerator, compared with the same model on the host.

    Parameters
    ----------
    chip : ChipGpt
        The model on the accelerator.
    along : AgreementMeter
        Reader that runs both models and counts how often their most likely tokens agree.
    target : str
        Name of the target, for reports.
    """

    chip: "ChipGpt"
    along: "AgreementMeter"
    target: str

    def statistics(self) -> tuple[dict[str, Any], list[str]]:
        """Return the statistics as JSON fields and as lines of text."""
        chip, tally = self.chip, self.along.tally
        rate = 1e6 * chip.words / max(chip.cycles, 1)
        found = {"words": chip.words, "cycles": chip.cycles, "words_per_million_cycles": rate}
        found |= {"compared": tally.words, "same": tally.same}
        text = (
            f"{chip.words:,} tokens processed on {self.target} in {chip.cycles:,} cycles, {rate:.2f} per million "
            f"cycles; the host predicts the same token for {tally.same} of {tally.words}"
        )
        return {"machine": found}, [text]


@contextmanager
def on_machine(model: "Gpt", args: argparse.Namespace) -> "Iterator[OnMachine]":
    """Compile the model for the accelerator and open the simulated chip."""
    from pathlib import Path

    from compiler.llm.data.examples import texts
    from compiler.llm.evaluate.top1_agreement import AgreementMeter
    from compiler.llm.model.accelerated import ChipGpt
    from compiler.llm.tokens.vocabulary import LANGUAGE
    from compiler.options import DramTiming
    from compiler.util.progress import building, say
    from cosim.rtl.rtl_device import RtlDevice
    from hw.config import MlaConfig, load_target

    dram = DramTiming(args.dram_latency, args.dram_bytes_per_cycle)

    def opened(config: MlaConfig, size: int) -> RtlDevice:
        rate = dram.bytes_per_cycle or config.n
        return RtlDevice(config, size, latency=dram.latency, bytes_per_cycle=rate, monitor=building)

    say("quantizing and compiling the language model")
    known = [LANGUAGE.encode(text) for text in texts(CALIBRATION_TEXTS)]
    chip = ChipGpt(model, load_target(args.target), opened, CONTEXT_TOKENS, known, args.answers, dram, say)
    try:
        yield OnMachine(chip, AgreementMeter(chip, model), Path(args.target).stem)
    finally:
        chip.close()
