"""Outer steps with TensorFlow and Keras on real Horovod."""

from __future__ import annotations

import tempfile
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
import tf_keras
from workers.runner import Cases, refused
from workers.tf_harness import check_same_on_all_ranks
from workers.tf_keras import VERSIONS, accuracy_of

from gradcomp import Loopback
from gradcomp.errors import ConfigError
from gradcomp.runtime.outer.sgd import OuterSGD
from horovod_compressors.tensorflow import OuterStep

cases = Cases()

SPEC = "residual|topk(ratio=0.05)"
SHAPES = {"matrix": (80, 64), "bias": (9,)}


class Model(tf.Module):
    """A matrix and a vector that differ by rank until `OuterStep` makes them equal."""

    def __init__(self) -> None:
        super().__init__()
        generator = np.random.default_rng(hvd.rank())
        for name, shape in SHAPES.items():
            setattr(
                self, name, tf.Variable(generator.standard_normal(shape, np.float32), name=name)
            )

    def change(self, step: int) -> None:
        """An inner step that differs by rank."""
        for name in SHAPES:
            getattr(self, name).assign_sub(change_of(step, hvd.rank(), name))


def change_of(step: int, rank: int, name: str) -> Any:
    seed = [step, rank, len(name)]
    return np.random.default_rng(seed).standard_normal(SHAPES[name], np.float32)


@cases
def tf_outer_steps_are_those_of_the_loopback() -> None:
    for options in ({}, {"fragments": 2, "overlap": 1}):
        model = Model()
        outer = OuterStep(SPEC, model, every=4, momentum=0.0, lr=0.5, **options)
        start = {name: getattr(model, name).numpy().reshape(-1) for name in SHAPES}
        sums = [OuterSGD(start, 0.5, 0.0, True) for _ in range(hvd.size())]
        values = [{name: one.copy() for name, one in start.items()} for _ in range(hvd.size())]
        loopback = Loopback(SPEC, hvd.size())
        averages: dict[str, Any] = {}
        period = 4 // (2 if options else 1)
        order = [one.name.removesuffix(":0") for one in model.trainable_variables]
        for step in range(8):
            model.change(step)
            for rank, own in enumerate(values):
                for name in SHAPES:
                    own[name] -= change_of(step, rank, name).reshape(-1)
            if (step + 1) % period == (period - 1 if options else 0):
                names = [order[step // period % 2]] if options else order
                averages = loopback.step(
                    {
                        name: [
                            (one.start[name] - own[name]).reshape(SHAPES[name])
                            for one, own in zip(sums, values, strict=True)
                        ]
                        for name in names
                    }
                )
            if (step + 1) % period == 0:
                for rank, one in enumerate(sums):
                    for name, of_ranks in averages.items():
                        values[rank][name] = one.step(name, of_ranks[rank].reshape(-1)).copy()
            assert outer.step() == ((step + 1) % period == 0)
            for name in SHAPES:
                wanted = values[hvd.rank()][name].reshape(SHAPES[name])
                np.testing.assert_array_equal(getattr(model, name).numpy(), wanted)


@cases
def tf_outer_resumes_inside_a_round() -> None:
    models = Model(), Model()
    outers = [OuterStep(SPEC, one, every=3) for one in models]
    for step in range(4):
        models[0].change(step)
        outers[0].step()
    with tempfile.TemporaryDirectory() as folder:  # each host may have a folder of its own
        outers[0].save(folder, 4)
        assert outers[1].load(folder) == 4
    for step in range(4, 6):
        for model, outer in zip(models, outers, strict=True):
            model.change(step)
            outer.step()
    for name in SHAPES:
        one, other = (getattr(model, name).numpy() for model in models)
        np.testing.assert_array_equal(one, other)
        check_same_on_all_ranks(one)


@cases
def tf_outer_with_keras() -> dict[str, float]:
    """The accuracy on digits after `fit` with the callback, by version of Keras."""
    result = {}
    for version, library in VERSIONS.items():
        library.utils.set_random_seed(1 + hvd.rank())
        model, images, classes = digits(library)
        outer = OuterStep("residual|int4", model, every=5)
        model.compile(library.optimizers.Adam(0.002), LOSS[library](from_logits=True))
        model.fit(images, classes, batch_size=48, epochs=8, verbose=0, callbacks=[outer.callback()])
        assert outer.inner_steps == 8 * 15
        for weight in model.get_weights():
            check_same_on_all_ranks(weight)
        result[version] = accuracy_of(model)
        assert result[version] > 0.8
    return result


@cases
def tf_outer_refusals() -> None:
    unbuilt = keras.Sequential([keras.layers.Dense(3)])
    refused(lambda: OuterStep("fp16", unbuilt), ConfigError, "build it first")
    for library in VERSIONS.values():
        model, images, classes = digits(library)
        outer = OuterStep("fp16", model)
        refused(lambda o=outer: o.set_loss_scale(1024.0), ConfigError, "leave the call out")
        model.compile("sgd", LOSS[library](from_logits=True), steps_per_execution=2)
        refused(
            lambda m=model, o=outer, x=images, y=classes: m.fit(
                x, y, verbose=0, callbacks=[o.callback()]
            ),
            ConfigError,
            "steps_per_execution is 2",
        )


LOSS = {one: one.losses.SparseCategoricalCrossentropy for one in (keras, tf_keras)}


def digits(library: Any) -> tuple[Any, Any, Any]:
    """A model, and this rank's images and classes."""
    from sklearn.datasets import load_digits

    layers = library.layers
    model = library.Sequential(
        [layers.Input([64]), layers.Dense(128, activation="relu"), layers.Dense(10)]
    )
    data = load_digits()
    own = slice(hvd.rank(), 1440, hvd.size())
    return model, data.data[own].astype("float32") / 16, data.target[own]
