"""Tests of inputs of `mla run` that differ from the model's integer type: floating-point values, images, audio."""

import json
import sys
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compiler.api import compile
from compiler.cli.inputs import read_samples
from compiler.ir.tensor import Quantization, Tensor
from hw.errors import InputError
from tests.support.float_graphs import numbers
from tests.support.onnx_models import model, node

DIGITS = Path(__file__).parents[2] / "scripts/networks/digits_int8.onnx"
#: Quantization of the digits network's input.
SCALE, ZERO = 0.0625, 0


def image(path, shape, seed=0, mode=None):
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    pixels.flat[:2] = 0, 255
    made = Image.fromarray(pixels)
    (made.convert(mode) if mode else made).save(path)
    return pixels


def sound(path, samples, channels=1, width=2):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(16_000)
        file.writeframes(np.asarray(samples).tobytes())


def outputs(mla, path, *options):
    result = mla("run", DIGITS, "--device", "golden", "--input", path, "--json", "-", *options)
    assert result.status == 0, result.err
    return json.loads(result.out)["outputs"], result.err


def one(path, tensor, scale=None):
    """Return the only sample in a file."""
    ((sample,),) = (read.values() for read in read_samples([tensor], path, None, 0, scale=scale))
    return sample


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_real_values_are_quantized(mla, tmp_path, kind):
    real = (np.random.default_rng(1).standard_normal((2, 1, 8, 8)) * 4).astype(kind)
    real[0, 0, 0, :4] = 0.03125, 0.09375, 100, -100  # halves round to even, as in onnxruntime
    stored = np.clip(np.rint(real.astype(np.float64) / SCALE) + ZERO, -128, 127).astype(np.int8)
    clipped = int((np.abs(real.astype(np.float64) / SCALE + 0.5) > 128).sum())
    assert clipped >= 2 and stored[0, 0, 0, :4].tolist() == [0, 2, 127, -128]
    np.save(tmp_path / "real.npy", real)
    np.save(tmp_path / "stored.npy", stored)
    found, err = outputs(mla, tmp_path / "real.npy")
    assert found == outputs(mla, tmp_path / "stored.npy")[0]
    line = f"input 'image' quantized to int8 with scale 0.0625, zero point 0; {clipped} of 128 values clipped"
    assert f"{tmp_path / 'real.npy'}: {line}" in err.splitlines()


@pytest.mark.parametrize(("rounding", "stored"), [("reference", [1, -1, 2]), ("onnxruntime", [0, 0, 2])])
def test_ties_follow_rounding_of_network(tmp_path, rounding, stored):
    np.save(tmp_path / "halves.npy", np.array([[0.25, -0.25, 0.75]]))
    tensor = Tensor("x", (1, 3), "int8", Quantization.per_tensor(0.5))
    network = replace(compile(DIGITS), rounding=rounding)
    (sample,) = read_samples([tensor], tmp_path / "halves.npy", None, 0, network)
    assert sample["x"].tolist() == [stored]


def test_real_values_need_a_scale(tmp_path):
    np.save(tmp_path / "real.npy", np.ones((1, 3)))
    for q in (None, Quantization.per_tensor(1.0)):
        with pytest.raises(InputError, match=r"must be int8\[samples, 3\], not float64\[1, 3\]$"):
            one(tmp_path / "real.npy", Tensor("x", (1, 3), "int8", q))


@pytest.mark.parametrize("shape", [(1, 1, 6, 5), (1, 6, 5, 1), (6, 5), (1, 6, 5), (1, 3, 6, 5), (1, 6, 5, 3)])
@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("uint8", lambda p: p),
        ("int8", lambda p: p.astype(int) - 128),
        ("float32", lambda p: p / np.float32(255)),
    ],
)
def test_pixels_use_full_range_of_input_type(tmp_path, shape, dtype, wanted):
    colour = 3 in shape
    pixels = image(tmp_path / "image.png", (6, 5, 3) if colour else (6, 5))
    in_order = pixels.transpose(2, 0, 1) if shape == (1, 3, 6, 5) else pixels
    found = one(tmp_path / "image.png", Tensor("x", shape, dtype))
    assert found.dtype == dtype and found.shape == shape
    np.testing.assert_array_equal(found, wanted(in_order).astype(dtype).reshape(shape))


def test_input_scale_option(mla, tmp_path):
    pixels = image(tmp_path / "image.png", (8, 8))
    np.save(tmp_path / "stored.npy", np.rint(pixels / 255 / SCALE).astype(np.int8).reshape(1, 1, 8, 8))
    found, err = outputs(mla, tmp_path / "image.png", "--input-scale", "0,255")
    assert found == outputs(mla, tmp_path / "stored.npy")[0]
    assert "pixels 0..255 are 0..1" in err and "zero point 0; 0 of 64 values clipped" in err
    found, err = outputs(mla, tmp_path / "image.png")
    assert "pixels 0..255 are int8 -128..127, to the model -8..7.938" in err
    real = one(tmp_path / "image.png", Tensor("x", (8, 8), "float32"), (127.5, 64.0))
    np.testing.assert_allclose(real, (pixels - 127.5) / 64, rtol=1e-6)


def test_color_conversion_is_reported(mla, tmp_path):
    rgb = image(tmp_path / "rgb.png", (8, 8, 3))
    found = one(tmp_path / "rgb.png", Tensor("x", (8, 8), "uint8"))
    assert np.abs(found - rgb @ np.array([0.299, 0.587, 0.114])).max() <= 1  # ITU-R BT.601
    result = mla("run", DIGITS, "--device", "golden", "--input", tmp_path / "rgb.png", "--json", "-")
    (warning,) = json.loads(result.out)["warnings"]
    assert warning == f"{tmp_path / 'rgb.png'}: converted to grayscale, as the model expects"
    gray = image(tmp_path / "gray.png", (8, 8))
    found = one(tmp_path / "gray.png", Tensor("x", (8, 8, 3), "uint8"))
    np.testing.assert_array_equal(found, np.stack([gray] * 3, -1))
    opaque = Image.fromarray(rgb).convert("RGBA")
    opaque.save(tmp_path / "opaque.png")
    found = one(tmp_path / "opaque.png", Tensor("x", (8, 8, 3), "uint8"))
    np.testing.assert_array_equal(found, rgb)


def test_unsuitable_images_are_rejected(complains, tmp_path):
    run = ("run", DIGITS, "--device", "golden", "--input")
    image(tmp_path / "large.png", (7, 9))
    complains(2, "is 9 x 7 pixels, input 'image' takes 8 x 8 (width x height)", *run, tmp_path / "large.png")
    (tmp_path / "text.png").write_text("no image")
    complains(2, "text.png: cannot be read as PNG: ", *run, tmp_path / "text.png")
    complains(2, "none.png: cannot be read as PNG: No such file", *run, tmp_path / "none.png")
    image(tmp_path / "whole.png", (8, 8))
    data = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(data[: len(data) // 2])
    complains(2, "cut.png: cannot be read as PNG: ", *run, tmp_path / "cut.png")
    Image.fromarray(np.full((8, 8), 999, np.uint16)).save(tmp_path / "deep.png")
    complains(2, "must have 8 bits per channel, not 16", *run, tmp_path / "deep.png")
    Image.fromarray(np.full((8, 8, 4), 9, np.uint8)).save(tmp_path / "clear.png")
    complains(2, "has transparent pixels", *run, tmp_path / "clear.png")
    complains(2, "--input-scale requires --input with a .png file", "run", DIGITS, "--input-scale", "0,1")
    complains(
        2, "input-scale: must be MEAN,STD with STD above 0, not '0,0'", "run", DIGITS, "--input-scale", "0,0"
    )
    with pytest.raises(InputError, match=r"float32\[1, 640\], which is not an image of 1 or 3 channels"):
        one(tmp_path / "whole.png", Tensor("x", (1, 640), "float32"))
    with pytest.raises(
        InputError, match="is int16 without a quantization scale, so that pixels cannot be converted"
    ):
        one(tmp_path / "whole.png", Tensor("x", (8, 8), "int16"))
    both = [Tensor("x", (8, 8), "uint8"), Tensor("y", (8, 8), "uint8")]
    with pytest.raises(InputError, match=r"has inputs x, y: give a \.npz"):
        read_samples(both, tmp_path / "whole.png", None, 0)


def test_images_without_pillow(complains, tmp_path, monkeypatch):
    image(tmp_path / "whole.png", (8, 8))
    monkeypatch.setitem(sys.modules, "PIL", None)
    run = ("run", DIGITS, "--device", "golden", "--input", tmp_path / "whole.png")
    complains(2, "whole.png: reading .png files needs Pillow (extra `media`", *run)


@pytest.mark.parametrize("shape", [(1, 9), (9,), (1, 9, 1), (1, 1, 9)])
def test_audio_is_scaled_to_unit_range(tmp_path, shape):
    samples = np.array([-32768, -1, 0, 1, 16384, 32767, 5, -5, 7], "<i2")
    sound(tmp_path / "sound.wav", samples)
    found = one(tmp_path / "sound.wav", Tensor("x", shape, "float32"))
    assert found.dtype == "float32" and found.shape == shape
    np.testing.assert_array_equal(found.reshape(-1), samples / 32768)
    q = Quantization.per_tensor(1 / 128, 0)
    found = one(tmp_path / "sound.wav", Tensor("x", shape, "int8", q))
    assert found.dtype == "int8" and found.reshape(-1).tolist() == [-128, 0, 0, 0, 64, 127, 0, 0, 0]


def test_run_with_audio_input(mla, tmp_path):
    path, samples = tmp_path / "tone.onnx", np.arange(-16, 16, dtype="<i2") * 2000
    nodes = [node("MatMul", "x w", "y")]
    wave_of = samples.astype(np.float32).reshape(1, 32) / 32768
    path.write_bytes(model(nodes, {"x": wave_of}, ["y"], {"w": numbers(32, 4)}).SerializeToString())
    np.save(tmp_path / "same.npy", wave_of)
    sound(tmp_path / "same.wav", samples)
    found = []
    for name in ("same.npy", "same.wav"):
        run = ("--calibrate", tmp_path / "same.npy", "--device", "golden", "--json", "-")
        result = mla("run", path, "--input", tmp_path / name, *run)
        assert result.status == 0, result.err
        found.append(json.loads(result.out)["outputs"])
    assert found[0] == found[1] and "32 samples at 16,000 Hz as -1..1" in result.err


def test_unsuitable_audio_is_rejected(complains, tmp_path):
    sound(tmp_path / "sound.wav", np.zeros(9, "<i2"))
    run = ("run", DIGITS, "--device", "golden", "--input")
    features = "input 'image' takes features int8[1, 1, 8, 8], not a waveform"
    complains(2, features, *run, tmp_path / "sound.wav")
    takes = Tensor("x", (1, 8), "float32")
    sound(tmp_path / "stereo.wav", np.zeros(16, "<i2"), channels=2)
    sound(tmp_path / "bytes.wav", np.zeros(8, np.uint8), width=1)
    (tmp_path / "text.wav").write_text("no sound")
    (tmp_path / "empty.wav").write_bytes(b"")
    sound(tmp_path / "cut.wav", np.zeros(8, "<i2"))
    (tmp_path / "cut.wav").write_bytes((tmp_path / "cut.wav").read_bytes()[:-4])
    for name, text in (
        ("sound.wav", "has 9 samples, input 'x' takes 8: cut or pad it first"),
        ("stereo.wav", "must be 16-bit mono, not 2 channels of 16 bits"),
        ("bytes.wav", "must be 16-bit mono, not 1 channels of 8 bits"),
        ("text.wav", "must be a PCM .wav file: "),
        ("empty.wav", "must be a PCM .wav file: it is cut short"),
        ("cut.wav", "must be a PCM .wav file: it is cut short"),
        ("none.wav", "cannot be read: No such file"),
    ):
        with pytest.raises(InputError, match=text):
            one(tmp_path / name, takes)


def test_image_cannot_be_example_of_module(complains, tmp_path):
    image(tmp_path / "whole.png", (8, 8))
    run = ("run", "some.module:function", "--input", tmp_path / "whole.png")
    complains(2, "exporting a PyTorch module needs an example of known shape: give a .npy or .npz", *run)
