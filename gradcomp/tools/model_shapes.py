"""Parameter shapes of well-known models, for synthetic gradients."""

from __future__ import annotations

from collections.abc import Callable

from gradcomp.errors import GradcompError

__all__ = ["MODELS", "model_shapes"]

Shapes = dict[str, tuple[int, ...]]


def model_shapes(model: str) -> Shapes:
    """Parameter name -> shape of ``model``, in the model's own order.

    Raises GradcompError when ``model`` is not one of MODELS.
    """
    if model not in MODELS:
        raise GradcompError(f"model {model!r}: expected one of {', '.join(MODELS)}")
    return MODELS[model]()


def _layer(name: str, *weight: int) -> Shapes:
    """A weight [outputs, ...] and its bias."""
    return {f"{name}.weight": weight, f"{name}.bias": weight[:1]}


def _conv_norm(conv: str, norm: str, *weight: int) -> Shapes:
    """A convolution without bias, followed by batch normalisation."""
    return {f"{conv}.weight": weight, **_layer(norm, weight[0])}


def _digits_mlp() -> Shapes:
    return {**_layer("1", 512, 64), **_layer("3", 512, 512), **_layer("5", 10, 512)}


def _digits_cnn() -> Shapes:
    return {
        **_layer("0", 32, 1, 3, 3),
        **_layer("2", 64, 32, 3, 3),
        **_layer("6", 128, 1024),
        **_layer("8", 10, 128),
    }


def _resnet20() -> Shapes:
    shapes = _conv_norm("conv", "norm", 16, 3, 3, 3)
    inputs = 16
    for block, width in enumerate([16] * 3 + [32] * 3 + [64] * 3):
        name = f"blocks.{block}"
        shapes |= _conv_norm(f"{name}.conv1", f"{name}.norm1", width, inputs, 3, 3)
        shapes |= _conv_norm(f"{name}.conv2", f"{name}.norm2", width, width, 3, 3)
        inputs = width
    return shapes | _layer("linear", 10, 64)


def _resnet50() -> Shapes:
    shapes = _conv_norm("conv1", "bn1", 64, 3, 7, 7)
    inputs = 64
    for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)], start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            shapes |= _conv_norm(f"{name}.conv1", f"{name}.bn1", width, inputs, 1, 1)
            shapes |= _conv_norm(f"{name}.conv2", f"{name}.bn2", width, width, 3, 3)
            shapes |= _conv_norm(f"{name}.conv3", f"{name}.bn3", 4 * width, width, 1, 1)
            if block == 0:
                shortcut = (f"{name}.downsample.0", f"{name}.downsample.1")
                shapes |= _conv_norm(*shortcut, 4 * width, inputs, 1, 1)
            inputs = 4 * width
    return shapes | _layer("fc", 1000, 2048)


def _vgg16() -> Shapes:
    shapes: Shapes = {}
    inputs, layer = 3, 0
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            shapes |= _layer(f"features.{layer}", width, inputs, 3, 3)
            inputs = width
            layer += 2  # an activation follows
        layer += 1  # pooling
    shapes |= _layer("classifier.0", 4096, 512 * 7 * 7)
    return shapes | _layer("classifier.3", 4096, 4096) | _layer("classifier.6", 1000, 4096)


def _bert_base() -> Shapes:
    width, inner = 768, 3072
    embeddings = {"word": 30522, "position": 512, "token_type": 2}
    shapes: Shapes = {
        f"embeddings.{name}_embeddings.weight": (rows, width) for name, rows in embeddings.items()
    }
    shapes |= _layer("embeddings.LayerNorm", width)
    for block in range(12):
        name = f"encoder.layer.{block}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= _layer(f"{name}.attention.{part}", width, width)
        shapes |= _layer(f"{name}.attention.output.LayerNorm", width)
        shapes |= _layer(f"{name}.intermediate.dense", inner, width)
        shapes |= _layer(f"{name}.output.dense", width, inner)
        shapes |= _layer(f"{name}.output.LayerNorm", width)
    return shapes | _layer("pooler.dense", width, width)


def _gpt2() -> Shapes:
    width = 768
    shapes: Shapes = {"wte.weight": (50257, width), "wpe.weight": (1024, width)}
    for block in range(12):
        name = f"h.{block}"
        # GPT-2 stores linear weights as [inputs, outputs].
        shapes |= _layer(f"{name}.ln_1", width)
        shapes |= {f"{name}.attn.c_attn.weight": (width, 3 * width)}
        shapes |= {f"{name}.attn.c_attn.bias": (3 * width,)}
        shapes |= _layer(f"{name}.attn.c_proj", width, width)
        shapes |= _layer(f"{name}.ln_2", width)
        shapes |= {f"{name}.mlp.c_fc.weight": (width, 4 * width)}
        shapes |= {f"{name}.mlp.c_fc.bias": (4 * width,)}
        shapes |= {f"{name}.mlp.c_proj.weight": (4 * width, width)}
        shapes |= {f"{name}.mlp.c_proj.bias": (width,)}
    return shapes | _layer("ln_f", width)


MODELS: dict[str, Callable[[], Shapes]] = {
    "digits-mlp": _digits_mlp,
    "digits-cnn": _digits_cnn,
    "resnet20": _resnet20,
    "resnet50": _resnet50,
    "vgg16": _vgg16,
    "bert-base": _bert_base,
    "gpt2": _gpt2,
}
"""digits-mlp, digits-cnn and resnet20 are models of scripts/train.py, resnet50 and vgg16 of
torchvision, bert-base (uncased, with pooler) and gpt2 (the small one) of transformers."""
