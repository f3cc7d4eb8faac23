"""Tests of `mla verilog` and `mla fpga` with invalid input; the tests of the hardware cover the results."""

import pytest


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("n = 5", "n must be one of 4, 8, 16, 32, not 5"),
        ("n = '8'", "n must be an integer, not '8'"),
        ("lanes = 8", "unknown field 'lanes'"),
        ("n = ", "cannot be read"),
        (f"n = {'9' * 5000}", "cannot be read: it contains a number of too many digits"),
        (f"n = 0x{'f' * 5000}", "n must be one of 4, 8, 16, 32, not an integer of 20000 bits"),
        (f"n = [0x{'f' * 5000}]", "n must be an integer, not [an integer of 20000 bits]"),
        (f"n = '{'9' * 5000}'", "n must be an integer, not '9999"),
        (f"{'n' * 5000} = 1", "unknown field 'nnnn"),
        (f"n = {'[' * 5000}", "cannot be read: its values are nested too deeply"),
        (f"n = {'[' * 200}{']' * 200}", "n must be an integer, not [[[[["),
    ],
)
def test_bad_target_file(complains, tmp_path, text, complaint):
    target = tmp_path / "own.toml"
    target.write_text(text)
    complains(2, complaint, "verilog", "-o", tmp_path / "out.v", "--target", target)
    assert list(tmp_path.iterdir()) == [target]


def test_unknown_target(complains, tmp_path):
    complains(2, "target must be one of", "verilog", "-o", tmp_path / "out.v", "--target", "n5")
    long = "n" * 6000
    complains(2, "not 'nnnn", "verilog", "-o", tmp_path / "out.v", "--target", long)
    complains(2, "...", "verilog", "-o", tmp_path / "out.v", "--target", f"{long}.toml")
    complains(2, "not 'absent.toml'", "verilog", "-o", tmp_path / "out.v", "--target", "absent.toml")


def test_unwritable_verilog(complains, tmp_path):
    complains(2, "cannot be written: No such file", "verilog", "-o", tmp_path / "absent" / "out.v")


def test_fpga_bad_input(complains):
    complains(2, "board must be one of ulx3s-85f, not 'de10'", "fpga", "--board", "de10")
    complains(2, "...", "fpga", "--board", "d" * 6000)
    complains(2, "target must be one of", "fpga", "--board", "ulx3s-85f", "--target", "n5")
    complains(2, "at least 1, not '0'", "fpga", "--board", "ulx3s-85f", "--seeds", "0")
