"""Outer steps on Horovod: the part that all frameworks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradcomp.adapter_api import OuterOptions, OuterSteps, Values
from gradcomp.errors import ConfigError
from horovod_compressors.compression import BaseCompression, is_elastic

__all__ = ["HorovodOuterSteps"]


class HorovodOuterSteps(OuterSteps):
    """Base class of Horovod's ``OuterStep``s: agrees with the other ranks through a compression."""

    def _agree(
        self,
        compression: BaseCompression,
        values: Values,
        kinds: Mapping[str, str],
        every: int,
        options: dict[str, Any],
    ) -> OuterOptions:
        """Set everything that `OuterSteps` needs; every rank must call it. Returns the settings.

        Args:
            kinds: of the values, see `agreement_line`.

        Raises:
            ConfigError: an argument does not fit; see `OuterOptions.of`.
            ProtocolError: the ranks have different arguments or models.
        """
        if is_elastic():
            raise ConfigError(
                "OuterStep does not work in elastic jobs of Horovod: run with a fixed number of ranks, or "
                "use torch_compressors.ElasticOuterStep"
            )
        chosen = OuterOptions.of(compression.config, every, **options)
        self.config = compression.config
        self._compression = compression
        self._pipeline = compression.pipeline
        self._collector = compression.agree(values.shapes, kinds)
        chosen.check_same(self._gather_bytes(chosen.text().encode()))
        return chosen

    def _gather_bytes(self, data: bytes) -> Sequence[bytes]:
        return self._compression.gather(data)
