"""Router options stored in the netlist take effect."""

import json

from hw.boards.ecp5.device import Ecp5
from hw.boards.nextpnr_options import ROUTING, set_options
from hw.boards.toolchain import YOSYS, Job, run_all

DESIGN = "module top(input a, b, output o); assign o = a ^ b; endmodule"


def test_options_reach_router(tmp_path):
    """The routed netlist records the settings that the router used."""
    (tmp_path / "top.v").write_text(DESIGN)
    script = "read_verilog top.v; synth_ecp5 -top top -json top.json"
    run_all([Job(tool=YOSYS, arguments=["-p", script], folder=tmp_path, log="yosys.log", title="synthesis")])
    set_options(tmp_path / "top.json", ROUTING)
    arguments = ["--85k", "--json", "top.json", "--router", "router2", "--write", "routed.json"]
    run_all(
        [Job(tool=Ecp5.nextpnr, arguments=arguments, folder=tmp_path, log="nextpnr.log", title="routing")]
    )
    settings = json.loads((tmp_path / "routed.json").read_text())["modules"]["top"]["settings"]
    assert {name: settings[name].strip() for name in ROUTING} == ROUTING
