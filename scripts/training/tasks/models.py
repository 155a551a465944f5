"""The models: small enough to train in seconds, large enough for compression to matter."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "CharLSTM",
    "CharTransformer",
    "ResNet20",
    "digits_cnn",
    "digits_mlp",
    "digits_vgg",
    "fashion_cnn",
]


def digits_mlp(classes: int = 10) -> nn.Module:
    """A 64-512-512-10 perceptron, 301 066 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


def digits_cnn(classes: int = 10) -> nn.Module:
    """Two convolutions and two linear layers, 151 306 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def digits_vgg(classes: int = 10) -> nn.Module:
    """A small VGG: three convolutions and three linear layers, 1 677 834 parameters.

    The linear layers hold 17/18 of them, so that a step sends much and computes little.
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * 2 * 2, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, classes),
    )


def fashion_cnn(classes: int = 10) -> nn.Module:
    """For 28x28 pixels: two convolutions and two linear layers, 421 642 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


class _Block(nn.Module):
    """Two 3x3 convolutions around an identity shortcut (option A of He et al.)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = outputs // inputs
        self.extra = outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        # The new channels of the shortcut are zeros, half of them on either side.
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, self.extra // 2, self.extra // 2))
        return functional.relu(y + shortcut)


class ResNet20(nn.Module):
    """ResNet-20 for 32x32 images (He et al., 2016, section 4.2), 269 722 parameters.

    With one channel 269 434; images may have any size from 4x4 on.
    """

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        """Make it with random weights (He et al., 2015)."""
        super().__init__()
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
        self.conv = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(*(_Block(a, b) for a, b in itertools.pairwise(widths)))
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        y = self.blocks(functional.relu(self.norm(self.conv(x))))
        scores: Tensor = self.linear(torch.mean(y, dim=(2, 3)))
        return scores


class CharLSTM(nn.Module):
    """An LSTM of width 256 over characters embedded in 64 dimensions.

    329 728 parameters, and 321 more for each character of the vocabulary.
    """

    def __init__(self, characters: int) -> None:
        """For a vocabulary of ``characters``."""
        super().__init__()
        self.character = nn.Embedding(characters, 64)
        self.lstm = nn.LSTM(64, 256, batch_first=True)
        self.linear = nn.Linear(256, characters)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the character after each place: [batch, characters, places].

        ``x``: numbers of characters, [batch, places].
        """
        scores: Tensor = self.linear(self.lstm(self.character(x))[0])
        return scores.transpose(1, 2)


class CharTransformer(nn.Module):
    """A causal transformer over characters: two layers, four heads, GELU.

    Normalisation comes before attention and perceptron; embeddings of places are learned. With
    width 128 and 64 places: 404 992 parameters, and 257 for each character of the vocabulary.
    """

    def __init__(self, characters: int, length: int, width: int = 128) -> None:
        """For a vocabulary of ``characters`` and pieces of at most ``length`` of them."""
        super().__init__()
        self.character = nn.Embedding(characters, width)
        self.place = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width,
            nhead=4,
            dim_feedforward=4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(
            layer, num_layers=2, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.linear = nn.Linear(width, characters)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the character after each place: [batch, characters, places].

        ``x``: numbers of characters, [batch, places].
        """
        places = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(places)
        y = self.character(x) + self.place.weight[:places]
        scores: Tensor = self.linear(self.layers(y, mask, is_causal=True))
        return scores.transpose(1, 2)
