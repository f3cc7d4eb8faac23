"""Choice of the requests whose inputs the machine compares with those of an earlier request."""

from collections import deque
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

from compiler.codegen.executable import Regions
from compiler.serving.request import Request, RequestResult
from compiler.serving.server import Server
from compiler.serving.versions import Version

#: Bound of the mean cost of comparisons if inputs never repeat, as a fraction of a request's cycles.
_MAX_COST = 0.005
#: Largest number of requests that are not compared between two pairs that are, and its value if costs are unknown.
_MAX_GAP, _USUAL_GAP = 512, 32
#: Adjacent requests that are compared: the first is stored, and the second shows whether inputs repeat now.
_PAIR = 2
#: Number of requests in a row that compute only changed regions without saving cycles, before a gap begins.
_FAILURES = 2
#: Gap between the first two requests that compute changed regions, of which the first is compared with zeros.
_FIRST_GAP = 4
#: Number of recent requests of each kind whose median gives the typical cycles.
_RECENT_REQUESTS = 8


@dataclass(frozen=True)
class _Programs:
    """Programs of a version that reuses results, by name.

    `short` are those that write earlier results, and `regions` those that compute only changed regions.
    """

    short: frozenset[str]
    regions: dict[str, Regions]

    @staticmethod
    def of(version: Version) -> "_Programs":
        """Return the programs of a version."""
        codes = version.network.codes
        return _Programs(
            version.network.alternatives,
            {code.parts[-1].program.name: code.regions for code in codes if code.regions},
        )


class ReusingServer:
    """Submits requests to a version that reuses results while inputs repeat, and otherwise to the current version.

    The version that reuses results compares the inputs of a request with those of its last request that differed, which
    costs time if they differ. While inputs repeat, every request is compared. While they do not, only pairs of adjacent
    requests are compared, and the gaps between pairs double, until the mean cost is at most 0.5% of the cycles of a
    request.

    If the version computes only changed regions, it may save cycles although inputs differ. Once it has saved cycles,
    all requests run on it until two in a row have taken more cycles than usual. From then on, and at the start, one
    request after each gap is compared.

    Parameters
    ----------
    server : Server
        Server that receives requests from this object only.
    reusing : Version
        Version of the same network that was compiled with `reuse`.
    """

    def __init__(self, server: Server, reusing: Version):
        self.server, self.reusing = server, reusing
        self._programs = {reusing: _Programs.of(reusing)}  # of the version and of those that it has replaced
        self._position = 0  # of the next request in a pair of compared requests and the following gap
        self._judged: int | None = (
            None  # second request of a pair in flight, whose result decides about the gap
        )
        self._usual: deque[int] = deque(maxlen=_RECENT_REQUESTS)
        self._computed: deque[int] = deque(maxlen=_RECENT_REQUESTS)
        self._failures = 0
        self._gap = _FIRST_GAP if self._computes_regions else 0

    @property
    def _computes_regions(self) -> bool:
        return bool(self._programs[self.reusing].regions)

    @property
    def submitted(self) -> int:
        """Number of submitted requests."""
        return self.server.submitted

    def submit(self, request: Request) -> None:
        """Submit a request; block while there is no free slot.

        Raises
        ------
        InputError
            An input is missing or unknown, or its shape or type differs from the model's.
        """
        compared = 1 if self._computes_regions else _PAIR
        if (
            self._computes_regions and not self.server.submitted
        ):  # shows how many cycles the usual programs take
            self.server.submit(request.inputs)
            return
        version = self.reusing if self._position < compared else None
        index = self.server.submit(request.inputs, version=version)
        if self._position == compared - 1 and self._judged is None:
            self._judged = index
        self._position = (self._position + 1) % (compared + self._gap)

    def results(self, *, wait: bool = False) -> list[RequestResult]:
        """Return the results since the last call, in order; with `wait`, block until all requests are complete."""
        out = [self._explained(result) for result in self.server.results(wait=wait)]
        for version in [each for each in self._programs if each is not self.reusing]:
            if not self.server.uses(version):
                del self._programs[version]
                self.server.drop(version)
        return out

    def replace(self, version: Version) -> None:
        """Use another version that reuses results for later requests; its first one is compared with zeros."""
        self.reusing = version
        self._programs[version] = _Programs.of(version)
        self._judged, self._position = None, 0

    def _explained(self, result: RequestResult) -> RequestResult:
        """Add to a result which programs ran and why, and adapt the gap."""
        programs = self._programs.get(result.version)
        if programs is None:
            if result.index == self._judged:  # it was repeated on the current version
                self._judged = None
            self._usual.append(result.cycles)
            return replace(
                result, variant="usual", why="not compared, since the inputs did not repeat before"
            )
        if programs.regions:
            return self._explained_regions(result, programs)
        if reused := sum(macro.program in programs.short for macro in result.macros):
            if self._gap:
                self._gap = self._position = 0
            self._judged = None
            if reused < sum(result.runs):
                why = f"the inputs of {reused} of {sum(result.runs)} stages equal those of an earlier request"
                return replace(result, variant="partly reused", why=why)
            return replace(result, variant="reused", why="the inputs equal those of an earlier request")
        self._computed.append(result.cycles)
        if result.index == self._judged:
            self._gap, self._position = min(max(2 * self._gap, 1), self._largest_gap()), _PAIR
            self._judged = None
        return replace(result, variant="computed", why="compared, but the inputs differ")

    def _explained_regions(self, result: RequestResult, programs: _Programs) -> RequestResult:
        """Add to a result what has been computed and why, and adapt the gap."""
        found = programs.regions
        runs = [(found[m.program], m.instructions) for m in result.macros if m.program in found]
        sizes = [(regions.computed(instructions), regions.image) for regions, instructions in runs]
        reused = all(macro.program in (*found, *programs.short) for macro in result.macros)
        if reused and all(size is None for size, _ in sizes):
            variant, why = "reused", "the inputs equal those of an earlier request"
        else:
            areas = [
                f"{size[0]} x {size[1]} of {whole[0]} x {whole[1]} pixels" for size, whole in sizes if size
            ]
            variant, why = "regions", f"computed what depends on {' and '.join(areas) or 'other inputs'}"
        usual = median(self._usual) if self._usual else 0
        costly = result.cycles >= usual if usual else any(size == whole for size, whole in sizes)
        if costly:
            self._computed.append(result.cycles)
            self._failures += 1
            if result.index == self._judged or not self._gap:
                self._judged = None
                if self._failures >= _FAILURES:
                    self._gap, self._position = self._largest_gap(), 1
            return replace(result, variant="computed", why=f"compared, but too much differs: {why}")
        if self._gap:
            self._gap = self._position = 0
        self._failures, self._judged = 0, None
        return replace(result, variant=variant, why=why)

    def _largest_gap(self) -> int:
        """Return the smallest gap for which the mean cost of comparisons is at most `_MAX_COST`."""
        if not self._usual or not self._computed or not median(self._usual):
            return _USUAL_GAP
        cost = median(self._computed) / median(self._usual) - 1
        compared = 1 if self._computes_regions else _PAIR
        return min(max(ceil(compared * cost / _MAX_COST), 1), _MAX_GAP)
