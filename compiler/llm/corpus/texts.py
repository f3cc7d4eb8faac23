"""Questions and answers as the model meets them, from the corpus that comes with the compiler."""

from compiler.llm.corpus.default import CORPUS
from compiler.llm.corpus.examples import examples
from compiler.llm.corpus.journal import read


def texts(count: int) -> list[list[str]]:
    """Words of so many questions and their answers, of networks spread over the corpus."""
    walks = read(CORPUS)
    out: list[list[str]] = []
    for walk in walks[:: max(len(walks) // (2 * count), 1)]:
        found = next(examples(walk), None)
        if found is not None:
            out.append([*found.question(best=True), *found.answer])
        if len(out) == count:
            break
    return out
