"""``fit`` of Keras 3 and Keras 2 on scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import keras
import numpy as np
import tensorflow as tf
import tf_keras
from sklearn.datasets import load_digits
from workers.runner import Cases, refused
from workers.tf_harness import check_same_on_all_ranks

from gradcomp import Metrics
from gradcomp.errors import ConfigError
from horovod_compressors.tensorflow import DGCSGD, Compression, DistributedOptimizer
from support.scope import by_scope

cases = Cases()

VERSIONS = {"keras3": keras, "keras2": tf_keras}
SPECS = ("dgc(ratio=0.01,warmup_epochs=0)", "polar(rate=0.5)")
FITTED = {"keras3": SPECS[: by_scope(1, 2)], "keras2": SPECS[by_scope(1, 0) :]}
EPOCHS = 6
SCALED = "residual(lr=scale)|topk(ratio=0.02)"


def fit(
    library: Any,
    make: Any,
    epochs: int = EPOCHS,
    end: int = 1440,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """A model after training on the first digits, checked for equality on all ranks.

    Args:
        make: from a model to its optimizer.
    """
    library.utils.set_random_seed(1)
    digits = load_digits()
    images, classes = digits.data.astype("float32") / 16, digits.target
    train = slice(hvd.rank(), end, hvd.size())
    layers = library.layers
    model = library.Sequential(
        [layers.Input([64]), layers.Dense(128, activation="relu"), layers.Dense(10)]
    )
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(make(model), loss, metrics=["accuracy"], jit_compile=False, **options)
    data, more = (images[train], classes[train]), [*callbacks]
    model.fit(*data, batch_size=48, epochs=epochs, verbose=0, callbacks=more)
    for weight in model.get_weights():
        check_same_on_all_ranks(weight)
    return model


def accuracy_of(model: Any) -> float:
    """The accuracy on digits that were not used in training."""
    digits = load_digits()
    scores = model(digits.data[1440:].astype("float32") / 16).numpy()
    return float((scores.argmax(1) == digits.target[1440:]).mean())


def compressing(spec: str, inner: Any, made: list[Compression]) -> Any:
    def make(model: Any) -> Any:
        made.append(Compression(spec, model.trainable_variables))
        return DistributedOptimizer(inner, made[-1])

    return make


def writing(library: Any, made: list[Compression], rows: list[Mapping[str, float]]) -> Any:
    """A callback with the metrics of the compression that is made with the model."""
    metrics: list[Metrics] = []

    def begin(logs: Any) -> None:
        metrics.append(Metrics(made[0], lambda values, step: rows.append(values), every=50))

    return library.callbacks.LambdaCallback(
        on_train_begin=begin,
        on_train_batch_end=lambda batch, logs: metrics[0].step(),
        on_train_end=lambda logs: metrics[0].close(),
    )


@cases
def tf_keras_fit() -> dict[str, dict[str, float]]:
    """The accuracy and the compression ratio, by version and spec."""
    result: dict[str, dict[str, float]] = {}
    for version, library in VERSIONS.items():
        for spec in ("identity", *FITTED[version]):
            compressions: list[Compression] = []

            # dgc applies the momentum itself.
            momentum = 0.0 if spec.startswith("dgc") else 0.9
            inner = library.optimizers.SGD(0.05, momentum=momentum)
            rows: list[Mapping[str, float]] = []
            metrics = writing(library, compressions, rows)
            model = fit(library, compressing(spec, inner, compressions), callbacks=[metrics])
            stats = compressions[0].stats
            if hvd.rank() == 0:
                steps = [row["gradcomp/steps"] for row in rows]
                assert steps == [1, 51, EPOCHS * 15], steps
                assert rows[-1]["gradcomp/total_bytes"] == stats.total_bytes
            assert stats.steps == EPOCHS * 15, stats
            result[f"{version} {spec}"] = {
                "accuracy": accuracy_of(model),
                "ratio": stats.dense_bytes / sum(stats.sent_bytes.values()),
            }
    return result


@cases
def tf_keras_options() -> None:
    """Sums instead of averages, steps without graphs, and several backward passes in a step."""

    def of(library: Any, of_inner: Any = None, **options: Any) -> Any:
        return lambda model: DistributedOptimizer(
            library.optimizers.SGD(0.01, **(of_inner or {})),
            Compression("residual|topk(ratio=0.1)", model.trainable_variables),
            **options,
        )

    for library in VERSIONS.values():
        fit(library, of(library, op=hvd.Sum), 1, 192)
    fit(keras, of(keras), 1, 192, run_eagerly=True)
    fit(keras, of(keras, {"gradient_accumulation_steps": 2}), 1, 192)
    for average in (False, True):
        passes = {"backward_passes_per_step": 2, "average_aggregated_gradients": average}
        fit(tf_keras, of(tf_keras, **passes), 1, 192)


@cases
def tf_keras_residuals_follow_the_learning_rate() -> None:
    """The same weights as with `set_lr` by hand, and others than without the rate."""
    rates = [0.1 * 0.5**step for step in range(4)]

    class ByHand(Compression):
        step = 0

        def _take(self, *values: Any) -> Any:
            _, _, begins, *_ = values
            if begins:
                self.set_lr(float(np.float32(rates[self.step])))
                self.step += 1
            return super()._take(*values)

    def weights(library: Any, rate: Any, made: Any = Compression, spec: str = SCALED) -> Any:
        def make(model: Any) -> Any:
            compression = made(spec, model.trainable_variables)
            optimizer = DistributedOptimizer(library.optimizers.SGD(rate), compression)
            if made is ByHand:
                compression._rate = None
            return optimizer

        return fit(library, make, 1, 192).get_weights()

    for library in VERSIONS.values():
        schedule = library.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        expected = weights(library, schedule, ByHand)
        for one, other in zip(weights(library, schedule), expected, strict=True):
            np.testing.assert_array_equal(one, other)
        plain = weights(library, schedule, spec="residual|topk(ratio=0.02)")
        assert any((one != other).any() for one, other in zip(plain, expected, strict=True))


@cases
def tf_keras_2_with_the_stock_optimizer() -> None:
    def make(model: Any) -> Any:
        compression = Compression("residual|topk(ratio=0.1)", model.trainable_variables)
        return hvd_keras.DistributedOptimizer(tf_keras.optimizers.SGD(0.1), compression=compression)

    fit(tf_keras, make, 1, 192)


@cases
def tf_keras_3_with_the_stock_optimizer_is_refused() -> None:
    """Horovod's own optimizer for Keras 3, which would never average, is refused."""
    for factory, compression in (
        (hvd.DistributedOptimizer, Compression("fp16")),
        (hvd_keras.DistributedOptimizer, Compression.fp16),
    ):
        refused(
            lambda factory=factory, compression=compression: factory(
                keras.optimizers.SGD(0.1), compression=compression
            ),
            ConfigError,
            "never averages the gradients of Keras 3",
            "horovod_compressors.tensorflow.DistributedOptimizer",
        )


@cases
def tf_keras_dgc_sgd() -> None:
    """With all elements sent and no masking, DGCSGD's steps equal SGD's, with L2 decay."""
    rng = [np.random.default_rng(rank) for rank in range(hvd.size())]
    for nesterov in (False, True):
        memory = f"momentum_correction(masking=false,nesterov={str(nesterov).lower()})"
        weights = {"matrix": np.ones((90, 50), np.float32), "bias": np.ones(9, np.float32)}
        variables = [keras.Variable(weight, name=name) for name, weight in weights.items()]
        optimizer = DistributedOptimizer(
            DGCSGD(0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov),
            Compression(f"{memory}|topk(ratio=1)", variables),
        )
        momenta = {name: np.zeros_like(weight) for name, weight in weights.items()}
        for _ in range(5):
            of_ranks = [
                [one.standard_normal(v.shape, np.float32) for v in variables] for one in rng
            ]
            optimizer.apply([tf.constant(grad) for grad in of_ranks[hvd.rank()]], variables)
            for i, name in enumerate(weights):
                grad = np.mean([grads[i] for grads in of_ranks], axis=0) + 0.01 * weights[name]
                momenta[name] = 0.9 * momenta[name] + grad
                step = grad + 0.9 * momenta[name] if nesterov else momenta[name]
                weights[name] = weights[name] - 0.1 * step
        for variable, weight in zip(variables, weights.values(), strict=True):
            np.testing.assert_allclose(variable.numpy(), weight, rtol=1e-4, atol=1e-5)
            check_same_on_all_ranks(variable.numpy())
    for made, spec, part in (
        (DGCSGD(0.1), "fp16", "applies none: use SGD"),
        (DGCSGD(0.1, momentum=0.8), "dgc(ratio=0.01)", "DGCSGD has momentum 0.8"),
    ):
        refused(lambda o=made, s=spec: DistributedOptimizer(o, Compression(s)), ConfigError, part)
    refused(lambda: DGCSGD(0.1, momentum=1.0), ConfigError, "momentum is 1.0")
    assert (
        DGCSGD.from_config(DGCSGD(0.1, weight_decay=0.5).get_config()).get_config()["weight_decay"]
        == 0.5
    )


@cases
def tf_keras_refusals() -> None:
    for library in VERSIONS.values():
        refused(
            lambda library=library: DistributedOptimizer(
                library.optimizers.SGD(0.1, momentum=0.9), Compression("dgc(ratio=0.01)")
            ),
            ConfigError,
            "SGD has momentum=0.9",
        )
    refused(
        lambda: DistributedOptimizer(
            keras.optimizers.SGD(0.1), Compression("fp16"), backward_passes_per_step=2
        ),
        ConfigError,
        "gradient_accumulation_steps",
    )


@cases
def tf_keras_3_models_load_without_horovod() -> None:
    optimizer = DistributedOptimizer(keras.optimizers.Adam(0.1), Compression("fp16"))
    config = keras.optimizers.serialize(optimizer)
    assert config["class_name"] == "Adam"
    assert type(keras.optimizers.deserialize(config)) is keras.optimizers.Adam
    np.testing.assert_allclose(float(tf.constant(config["config"]["learning_rate"])), 0.1)
