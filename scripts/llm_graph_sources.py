"""Public models that are traced for pre-training of the language model: packages, families, sizes of inputs."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  an extra

from compiler.llm.data.model_graphs import GraphLayer
from scripts.llm_graph_tracing import trace

#: Declarations of operators that torchvision expects from its binary part, which CPU builds of PyTorch may lack.
_TORCHVISION = torch.library.Library("torchvision", "FRAGMENT")
with suppress(RuntimeError):
    for _operator in ("nms", "qnms"):
        _TORCHVISION.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

#: Maximum number of models per family, and sizes of images beside the default size of a model.
_VARIANTS = 6
_IMAGES = (64, 96, 128, 160, 192, 256, 320)
#: Numbers of tokens of sequences, and fractions of the published width at which transformers are traced.
_TOKENS, _WIDTHS = (8, 24, 32, 48, 96, 128), (1, 2, 4)
#: Maximum number of blocks of a traced transformer; further blocks repeat the same layers.
_BLOCKS = 3


@dataclass(frozen=True)
class Source:
    """Model to trace.

    Parameters
    ----------
    family, name : str
        Family of the model, and its name with the size of its input.
    origin : dict
        Repository, path, licence, and the package with which the model is traced.
    layers : callable
        Traces the model and returns its layers.
    """

    family: str
    name: str
    origin: dict[str, str]
    layers: Callable[[], list[GraphLayer]]


def image_layers(build: Callable[[], Any], size: int, channels: int = 3, call: str = "") -> list[GraphLayer]:
    """Trace a model of images.

    Parameters
    ----------
    build : callable
        Returns the module.
    size : int
        Height and width of the image.
    channels : int
        Channels of the image.
    call : str
        Name of the method to trace; empty for the call of the module.
    """
    with torch.device("meta"):
        module = build().eval()
        x = torch.empty(1, channels, size, size)
    return trace(getattr(module, call) if call else module, x, inputs=[x])


def timm_sources() -> Iterator[Source]:
    """Yield models of timm: default size, and another size if the model accepts them."""
    import timm  # pyright: ignore[reportMissingImports]

    for module in sorted(timm.list_modules()):
        names = [each for each in timm.list_models(module=module) if "test_" not in each]
        origin = _origin("huggingface/pytorch-image-models", f"timm/models/{module}.py", "Apache-2.0", "timm")
        for title in _spread(names, _VARIANTS):
            usual = timm.get_pretrained_cfg(title, allow_unregistered=True)
            usual_size = usual.input_size[-1] if usual is not None else 224
            for size in dict.fromkeys((usual_size, *_choose(title, _IMAGES, 1))):
                yield Source(
                    f"timm/{module}",
                    f"{title} {size}x{size}",
                    origin,
                    lambda t=title, s=size, u=usual_size: _timm(t, s, u),
                )


def _timm(title: str, size: int, usual: int) -> list[GraphLayer]:
    import timm  # pyright: ignore[reportMissingImports]

    if size == usual:
        return image_layers(lambda: timm.create_model(title), size)
    with suppress(TypeError):
        return image_layers(lambda: timm.create_model(title, img_size=size), size)
    return image_layers(lambda: timm.create_model(title), size)


def torchvision_sources() -> Iterator[Source]:
    """Yield models of torchvision: classification and segmentation, backbones of detection."""
    from torchvision import models  # pyright: ignore[reportMissingImports]

    for title in models.list_models():
        build = models.get_model_builder(title)
        path = build.__module__.replace(".", "/") + ".py"
        family = "torchvision/" + build.__module__.split(".", 2)[2].replace(".", "/")
        origin = _origin("pytorch/vision", path, "BSD-3-Clause", "torchvision")
        call = "backbone" if "/detection/" in path else ""
        sizes = _choose(title, (320, 512, 640), 2) if call else (224, *_choose(title, _IMAGES, 3))
        for size in dict.fromkeys(sizes):
            options = (
                {"weights": None, "weights_backbone": None}
                if call or "segmentation" in path
                else {"weights": None}
            )
            yield Source(
                family,
                f"{title} {size}x{size}",
                origin,
                lambda b=build, o=options, s=size, c=call: image_layers(lambda: b(**o), s, call=c),
            )


def segmentation_sources() -> Iterator[Source]:
    """Yield decoders of segmentation_models_pytorch on several encoders."""
    import segmentation_models_pytorch as smp  # pyright: ignore[reportMissingImports]

    encoders = (
        "resnet18",
        "resnet34",
        "efficientnet-b0",
        "efficientnet-b3",
        "vgg11",
        "densenet121",
        "mit_b0",
        "xception",
    )
    for title in (
        "Unet",
        "UnetPlusPlus",
        "MAnet",
        "Linknet",
        "FPN",
        "PSPNet",
        "PAN",
        "DeepLabV3",
        "DeepLabV3Plus",
        "UPerNet",
        "Segformer",
    ):
        kind = getattr(smp, title, None)
        if kind is None:
            continue
        path = kind.__module__.replace(".", "/") + ".py"
        origin = _origin("qubvel-org/segmentation_models.pytorch", path, "MIT", "segmentation_models_pytorch")
        for encoder in encoders:
            for size in _choose(title + encoder, (96, 128, 160, 256, 320), 2):
                yield Source(
                    f"segmentation/{title}",
                    f"{encoder} {size}x{size}",
                    origin,
                    lambda k=kind, e=encoder, s=size: image_layers(
                        lambda: k(e, encoder_weights=None, classes=4), s
                    ),
                )


def transformers_sources() -> Iterator[Source]:
    """Yield language models of transformers with their default sizes, at fractions of their width."""
    from transformers import AutoConfig  # pyright: ignore[reportMissingImports]
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # pyright: ignore[reportMissingImports]
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES  # pyright: ignore[reportMissingImports]

    for kind in sorted(CONFIG_MAPPING_NAMES):
        if kind not in MODEL_MAPPING_NAMES:
            continue
        path = f"src/transformers/models/{kind.replace('-', '_')}"
        origin = _origin("huggingface/transformers", path, "Apache-2.0", "transformers")
        for part in _WIDTHS:
            for tokens in _choose(f"{kind} {part}", _TOKENS, 2):
                width = "" if part == 1 else f", width / {part}"
                yield Source(
                    f"transformers/{kind}",
                    f"{kind} {tokens} tokens{width}",
                    origin,
                    lambda k=kind, p=part, t=tokens: _transformer(AutoConfig.for_model(k), p, t),
                )


#: Properties of configurations that are divided by a fraction of the width, and numbers of blocks.
_WIDTH_NAMES = (
    *(
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "d_model",
        "n_embd",
        "n_head",
    ),
    *(
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "encoder_attention_heads",
        "decoder_attention_heads",
        "d_ff",
        "num_heads",
    ),
    *(
        "ffn_dim",
        "dim",
        "hidden_dim",
        "n_heads",
        "emb_dim",
        "embedding_size",
        "word_embed_proj_dim",
        "d_inner",
    ),
)
_BLOCK_NAMES = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "num_layers",
    "num_decoder_layers",
)


def _transformer(config: Any, part: int, tokens: int) -> list[GraphLayer]:
    from transformers import AutoModel  # pyright: ignore[reportMissingImports]

    for key in _WIDTH_NAMES:
        value = getattr(config, key, None)
        if part > 1 and isinstance(value, int):
            if value % part:
                raise ValueError("the width is not divisible")
            with suppress(Exception):
                setattr(config, key, value // part)
    for key in _BLOCK_NAMES:
        value = getattr(config, key, None)
        if isinstance(value, int) and value > _BLOCKS:
            with suppress(Exception):
                setattr(config, key, _BLOCKS)
    types = getattr(config, "layer_types", None)
    if isinstance(types, list):
        config.layer_types = types[:_BLOCKS]
    config.use_cache = False
    with torch.device("meta"):
        module = AutoModel.from_config(config).eval()
        name = module.main_input_name
        if name == "input_ids":
            x = torch.zeros(1, tokens, dtype=torch.long)
        elif name == "pixel_values":
            size = getattr(config, "image_size", 128)
            size = size if isinstance(size, int) else size[0]
            x = torch.empty(1, getattr(config, "num_channels", 3), size, size)
        elif name == "input_values":
            x = torch.empty(1, 100 * tokens)
        else:
            x = torch.empty(1, getattr(config, "num_mel_bins", 80), 3000)
        more = (
            {"decoder_input_ids": torch.zeros(1, tokens, dtype=torch.long)}
            if config.is_encoder_decoder
            else {}
        )
    return trace(module, inputs=[x, *more.values()], **{name: x}, **more)


def diffusion_sources() -> Iterator[Source]:
    """Yield denoising and autoencoding networks of diffusers with their default sizes, at several widths."""
    import diffusers  # pyright: ignore[reportMissingImports]

    def unet(widths: tuple[int, ...], size: int) -> list[GraphLayer]:
        with torch.device("meta"):
            module = diffusers.UNet2DModel(block_out_channels=widths).eval()
            x, step = torch.empty(1, 3, size, size), torch.zeros(1)
        return trace(module, x, step, inputs=[x])

    def vae(widths: tuple[int, ...], size: int) -> list[GraphLayer]:
        with torch.device("meta"):
            kinds = len(widths)
            module = diffusers.AutoencoderKL(
                block_out_channels=widths,
                down_block_types=("DownEncoderBlock2D",) * kinds,
                up_block_types=("UpDecoderBlock2D",) * kinds,
            ).eval()
            x = torch.empty(1, 3, size, size)
        return trace(module, x, inputs=[x])

    origin = _origin(
        "huggingface/diffusers", "src/diffusers/models/unets/unet_2d.py", "Apache-2.0", "diffusers"
    )
    for base in (32, 64, 96, 128, 224):
        for size in (32, 64):
            widths = (base, 2 * base, 3 * base, 4 * base)
            yield Source(
                "diffusers/unet_2d", f"{widths} {size}x{size}", origin, lambda w=widths, s=size: unet(w, s)
            )
    path = "src/diffusers/models/autoencoders/autoencoder_kl.py"
    origin = _origin("huggingface/diffusers", path, "Apache-2.0", "diffusers")
    for base in (32, 64, 128):
        for size in (32, 64, 128):
            widths = (base, 2 * base, 4 * base, 4 * base)
            yield Source(
                "diffusers/autoencoder_kl",
                f"{widths} {size}x{size}",
                origin,
                lambda w=widths, s=size: vae(w, s),
            )


def _origin(repository: str, path: str, licence: str, package: str) -> dict[str, str]:
    traced = f"{package} {version(package)}"
    return {"repository": repository, "path": path, "licence": licence, "traced": traced}


def _spread(names: list[str], count: int) -> list[str]:
    if len(names) <= count:
        return names
    return [names[number * (len(names) - 1) // (count - 1)] for number in range(count)]


def _choose(key: str, values: tuple[int, ...], count: int) -> list[int]:
    """Choose values by a digest of a name, so that equal names have equal sizes."""
    return sorted(values, key=lambda value: zlib.crc32(f"{key} {value}".encode()))[:count]


SOURCES: dict[str, Callable[[], Iterator[Source]]] = {
    "timm": timm_sources,
    "torchvision": torchvision_sources,
    "segmentation_models_pytorch": segmentation_sources,
    "transformers": transformers_sources,
    "diffusers": diffusion_sources,
}
