"""Headers of sample files are checked before data are read."""

import io
import random
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest

from compiler.cli import inputs
from compiler.cli.inputs import first_sample, read_samples
from compiler.ir.tensor import Tensor
from hw.errors import InputError
from scripts.networks.digits import MODEL

PIXELS = Tensor("x", (1, 8, 3), "int8")
HUGE = 1 << 40


def header(shape: tuple[int, ...], dtype: str = "|i1", columns_first: bool = False) -> bytes:
    """Return the header of a .npy file without data."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": columns_first, "shape": shape}
    )
    return file.getvalue()


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def test_arrays_are_read_unchanged(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    whole = rng.integers(-128, 128, (5, 8, 3)).astype(np.int8)
    files = []
    for name, array in (("rows", whole), ("columns", np.asfortranarray(whole)), ("inner", whole[:, None])):
        np.save(tmp_path / f"{name}.npy", array)
        np.savez(tmp_path / f"{name}.npz", x=array)
        np.savez_compressed(tmp_path / f"{name}_small.npz", x=array)
        files += [tmp_path / f"{name}.npy", tmp_path / f"{name}.npz", tmp_path / f"{name}_small.npz"]
    for file in files:
        for limit in (None, 1, 3, 5, 9):
            samples = read_samples([PIXELS], file, limit, 0)
            assert len(samples) == min(limit or 5, 5)
            for sample, expected in zip(samples, whole, strict=False):
                assert sample["x"].shape == (1, 8, 3) and sample["x"].flags.writeable
                assert np.array_equal(sample["x"][0], expected), file
        first = first_sample(file)
        one = first["x"] if isinstance(first, dict) else first
        assert one is not None and np.array_equal(one.reshape(8, 3), whole[0])
    contents = io.BytesIO(files[0].read_bytes())
    assert len(read_samples([PIXELS], contents, 2, 0)) == 2


@pytest.mark.parametrize("packed", [True, False])
def test_only_requested_samples_are_read(tmp_path: Path, packed: bool) -> None:
    """Two samples are read from a file whose header claims 24 TiB."""
    data = header((HUGE, 8, 3)) + bytes(range(48))
    file = tmp_path / "x"
    npz(file, x=data) if packed else file.write_bytes(data)
    assert [sample["x"].sum() for sample in read_samples([PIXELS], file, 2, 0)] == [276, 852]
    assert first_sample(file) is not None
    with pytest.raises(InputError, match="truncated: 48 of 72 bytes"):
        read_samples([PIXELS], file, 3, 0)
    with pytest.raises(
        InputError, match=r"26,388,279,066,624 bytes of samples exceed the limit of 2,147,483,648"
    ):
        read_samples([PIXELS], file, None, 0)


def test_mismatching_archive_is_not_decompressed(mla, tmp_path: Path) -> None:
    """An archive with a mismatching header and half a gigabyte of zeros is rejected without decompression."""
    file, count = tmp_path / "zeros.npz", 1 << 29
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("image.npy", "w", force_zip64=True) as member,
    ):
        member.write(header((count // 64, 64)))
        for _ in range(count >> 24):
            member.write(bytes(1 << 24))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = mla("run", MODEL, "--device", "golden", "--target", "n4", "--input", file)
    assert result.status == 2 and "image.npy" not in result.err and "must be" in result.err
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < count // 2


def test_size_limit_applies_to_whole_column_major_array(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(header((HUGE, 8, 3), columns_first=True))
    with pytest.raises(InputError, match="bytes of samples exceed the limit"):
        read_samples([PIXELS], tmp_path / "x.npy", 1, 0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"\x93NUMPY\x01\x00", "must be a .npy or .npz file of numbers"),
        (b"\x93NUMPY\x09\x00" + bytes(99), "header version 9.0 is not supported"),
        (b"PK\x03\x04" + bytes(99), "must be a .npy or .npz file of numbers: File is not a zip file"),
        (header((2, 8, 3), "|O"), "contains Python objects"),
        (header(()), r"must be int8\[samples, 8, 3\], not int8\[\]"),
        (header((-2, 8, 3)), "shape"),
        (header((2, 8, 3), "<f4"), r"must be int8\[samples, 8, 3\], not float32\[2, 8, 3\]"),
        (header((0, 8, 3)), "at least one"),
    ],
)
def test_invalid_files_are_named(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(InputError, match=says) as refusal:
        read_samples([PIXELS], tmp_path / "x.npy", None, 0)
    assert str(refusal.value).startswith(f"{tmp_path / 'x.npy'}: ") and "\n" not in str(refusal.value)


def test_damaged_headers_give_one_line(tmp_path: Path) -> None:
    """A damaged header raises an InputError with a one-line message, unless the file is still valid."""
    seed = 12
    print(f"seed {seed}")
    rng, file, refused = random.Random(seed), tmp_path / "x.npy", 0
    whole = header((2, 8, 3)) + bytes(48)
    texts = [
        b"(" * 3000,
        b"[" * 5000,
        b"{'descr': " + b"-" * 4000,
        b"{" + b"'a':{" * 500,
        b"'",
        b"1_",
        b"\xff",
        b"\0",
    ]
    cases = [b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text for text in texts]
    for _ in range(600):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(6, 80)] = rng.choice((rng.randrange(256), *b"()[]{}'\\,:-eL9"))
        cases.append(bytes(data))
    for data in cases:
        for path in (file, npz(tmp_path / "x.npz", x=data)):
            file.write_bytes(data)
            try:
                read_samples([PIXELS], path, None, 0)
            except InputError as error:
                assert "\n" not in str(error) and len(str(error)) < 1000
                refused += 1
    assert refused > 600


def test_size_limit_is_exact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 8, 3), np.int8))
    monkeypatch.setattr(inputs, "MAX_READ_BYTES", 95)
    with pytest.raises(InputError, match="96 bytes of samples exceed the limit of 95 bytes"):
        read_samples([PIXELS], tmp_path / "x.npy", None, 0)
    assert len(read_samples([PIXELS], tmp_path / "x.npy", 3, 0)) == 3
