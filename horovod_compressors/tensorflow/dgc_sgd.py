"""SGD of Keras 3 for specs that apply the momentum themselves (DGC)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from gradcomp.errors import ConfigError

__all__ = ["DGCSGD"]


@keras.saving.register_keras_serializable("gradcomp")
class DGCSGD(keras.optimizers.Optimizer):  # type: ignore[misc]
    """SGD that applies its momentum to the weight decay alone; for Keras 3.

    The memory ``momentum_correction`` (of ``dgc``) applies the momentum to gradients. Ranks do not
    send the weight decay, so this optimizer applies the momentum to it: ::

        d = weight_decay * p;  m = momentum * m + d;  p -= learning_rate * (grad + m)

    or with nesterov ``p -= learning_rate * (grad + d + momentum * m)``. The same as
    `torch_compressors.DGCSGD`, after the authors' code of Lin et al., "Deep Gradient Compression"
    (ICLR 2018).

    Args:
        learning_rate: a number or a schedule.
        momentum, nesterov: the same as in the spec.
        weight_decay: part of the gradient, as in torch's SGD; not Keras' decoupled one.
        options: of ``keras.optimizers.Optimizer``.

    Raises:
        ConfigError: a number is not in its range.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        name: str = "dgc_sgd",
        **options: Any,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ConfigError(f"momentum is {momentum}; it must be in [0, 1)")
        if not weight_decay >= 0:
            raise ConfigError(f"weight_decay is {weight_decay}; it must be at least 0")
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.momentum = momentum
        self.nesterov = nesterov
        self._decay = weight_decay
        self._momenta: list[Any] = []

    def build(self, variables: Sequence[Any]) -> None:
        """Make a momentum for each variable."""
        if self.built:
            return
        super().build(variables)
        self._momenta = [
            self.add_variable_from_reference(variable, name="momentum") for variable in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Change one variable by its average gradient."""
        if self._decay:
            momentum = self._momenta[self._get_variable_index(variable)]
            decay = keras.ops.multiply(variable, self._decay)
            self.assign(momentum, keras.ops.add(momentum * self.momentum, decay))
            late = decay + self.momentum * momentum if self.nesterov else momentum
            gradient = keras.ops.add(gradient, late)
        rate = keras.ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, keras.ops.multiply(gradient, rate))

    def get_config(self) -> dict[str, Any]:
        """The arguments, for `from_config`."""
        arguments = {
            "momentum": self.momentum,
            "weight_decay": self._decay,
            "nesterov": self.nesterov,
        }
        return {**super().get_config(), **arguments}
