"""A device that sends its results to other ranks' devices as they are: no frame is made on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

import torch

from gradcomp import Codec, EncodeItem
from gradcomp.adapter_api import ByteArray, FloatArray
from gradcomp.device_api import (
    FactorDevice,
    PeerDevice,
    PeerItem,
    ProductItem,
    SettleItem,
    Shares,
)
from gradcomp.errors import ProtocolError
from gradcomp_torch.device_messages import DeviceMessage
from gradcomp_torch.devices import Halves, array_of, convert, halves_of, tensor_of
from gradcomp_torch.gpu import codecs
from gradcomp_torch.gpu.add import Form
from gradcomp_torch.gpu.device import TorchDevice, kind_of, to_launch
from gradcomp_torch.gpu.factors import FactorExchange, kinds_of
from gradcomp_torch.gpu.peer_receive import Receiver, SumItem
from gradcomp_torch.gpu.peer_send import HEADER, Layout, Part, Sender
from gradcomp_torch.gpu.peer_sums import KeptForm, PeerTensor, Place, peer_form_of
from gradcomp_torch.gpu.shares import ShareSender

__all__ = ["DirectDevice"]

_LASTING = attrgetter("codec", "grad", "residual", "beta", "gamma", "correction")
"""What launches without random numbers depend on, of a tensor."""


@dataclass(frozen=True, eq=False)
class _Messages(DeviceMessage):
    """This rank's messages, one after the other.

    Attributes:
        receivers: of all ranks' messages of a layout, by its number; or of whole replies, by their kind.
    """

    name: str
    layouts: list[Layout]
    receivers: dict[int | str, Receiver]

    @cached_property
    def splits(self) -> list[int]:
        """Size of each message in bytes."""
        return [layout.size for layout in self.layouts]

    @cached_property
    def numbers(self) -> DeviceMessage:
        """The payloads of a message of float16."""
        return DeviceMessage(self.data[HEADER:].view(torch.float16), self.staging)


class _Exchange:
    """Memory and launches of an exchange, for tensors with these codecs, sizes and kinds of error feedback.

    Attributes:
        messages: of the last step; None before the first launch.
        memory: of its tensors; one view for each piece.
    """

    def __init__(self, kinds: object, sender: Sender) -> None:
        self.kinds = kinds
        self.sender = sender
        self.receivers: dict[int | str, Receiver] = {}
        self.messages: _Messages | None = None
        self.memory: list[torch.Tensor] = []
        self._given: object = None
        self._halves: list[Halves] = []
        self._waited: list[bool] = []

    def repeats(self, given: object) -> bool:
        """Whether a step's tensors are where those of the last one were, so that its launches can be made again."""
        return given == self._given and [each.waits for each in self._halves] == self._waited

    def keep(self, given: object, tensors: Sequence[EncodeItem]) -> None:
        """Keep a step's tensors, before their launches.

        Args:
            given: all that must be equal in another step. It is not enough for random numbers, for events of
                gradients, and for gradients that are converted first.
        """
        grads = [array_of(tensor.grad) for tensor in tensors]
        lasts = not any(self.sender.seeded) and all(
            array.computed is None and (tensor.residual is not None or not array.converts)
            for array, tensor in zip(grads, tensors, strict=True)
        )
        self._given = given if lasts else None
        self._halves = halves_of(grads)
        self._waited = [each.waits for each in self._halves]
        views = chain.from_iterable(array.memory for array in grads)
        self.memory = list({view.untyped_storage().data_ptr(): view for view in views}.values())


@dataclass(frozen=True, eq=False)
class _Factors(DeviceMessage):
    """This rank's products of matrices."""

    exchange: FactorExchange


class DirectDevice(TorchDevice):
    """As `TorchDevice`, for one job in which all ranks have one and an engine between them.

    Messages are checked on the device; a damaged one is an error of the next step, as nobody waits for the
    check. Until then its elements are in the averages; none of them is outside of its tensor.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._exchanges: dict[str, _Exchange] = {}
        self._of_step: set[str] = set()
        self._checked: dict[str, list[Receiver]] = {}
        self._averages = torch.zeros(0, dtype=torch.float32, device=device)
        self._of_factors: dict[tuple[object, ...], FactorExchange] = {}

    def to_peers(self, codec: Codec) -> PeerDevice | None:
        """This device, if others can add what the codec's encoder makes."""
        return self if codecs.takes(codec.spec) and codecs.goes_to_peers(codec.spec) else None

    def begin_messages(
        self, name: str, groups: Sequence[Sequence[EncodeItem]], size: int = 0
    ) -> Any:
        """See `PeerDevice`."""
        division = size, list(map(len, groups))
        tensors = list(chain.from_iterable(groups))
        return self._begin(name, tensors, division, lambda: self._sender(groups, size))

    def _begin(
        self,
        name: str,
        tensors: Sequence[EncodeItem],
        division: object,
        make_sender: Callable[[], Sender],
    ) -> _Messages:
        """Launch what makes messages of tensors.

        Args:
            division: of the tensors into messages; with another one a sender is made.
        """
        self._raise_found(name)
        self._forget_unused(name)
        given = division, list(map(_LASTING, tensors))
        exchange = self._exchanges.get(name)
        if exchange is not None and exchange.messages is not None and exchange.repeats(given):
            with self._staging.beside(exchange.memory):
                exchange.sender.launch_again()
            return exchange.messages
        kinds = division, [(kind_of(tensor), tensor.grad.size) for tensor in tensors]
        if exchange is None or exchange.kinds != kinds:
            exchange = _Exchange(kinds, make_sender())
            self._exchanges[name] = exchange
        exchange.keep(given, tensors)
        sender = exchange.sender
        with self._beside(tensors):
            sender.launch(
                [
                    to_launch(tensor, seeded=seeded)
                    for tensor, seeded in zip(tensors, sender.seeded, strict=True)
                ]
            )
        exchange.messages = _Messages(
            sender.data, self._staging, name, sender.layouts, exchange.receivers
        )
        return exchange.messages

    def _forget_unused(self, name: str) -> None:
        """Free the memory of exchanges that the last step did not have, such as those before a change of
        pattern: a step begins with a name that the last one has had."""
        if name in self._of_step:
            for unused in self._exchanges.keys() - self._of_step:
                self._raise_found(unused)
                del self._exchanges[unused]
            self._of_step.clear()
        self._of_step.add(name)

    def _sender(self, groups: Sequence[Sequence[EncodeItem]], size: int) -> Sender:
        kinds = [tuple((item.codec.spec, item.grad.size) for item in group) for group in groups]
        parts = self._parts(list(chain.from_iterable(groups)))
        return Sender(kinds, parts, size, self._device)

    def _parts(self, tensors: Sequence[EncodeItem]) -> list[Part]:
        return [
            Part(tensors[places[0]].codec.spec, places, encoder)
            for places, encoder in self._encoders_of(tensors)
        ]

    def add_messages(
        self,
        own_messages: Any,
        group: int,
        tensors: Sequence[PeerItem],
        messages: Sequence[ByteArray],
        weight: float,
        exact: int | None = None,
    ) -> None:
        """See `PeerDevice`."""
        given = tensors, messages, weight, exact
        if self._receive_again(own_messages, group, given, tensors if exact is None else ()):
            return
        layout = own_messages.layouts[group]
        count = len(messages)
        if exact is None:
            _discard(tensors)
            sums = [SumItem(_forms(tensors, layout.places), (0, count), weight)]
        else:
            sums = []
            for first, end in ((0, exact), (exact + 1, count)):
                some = [item._replace(streams=item.streams[first:end]) for item in tensors]
                if first < end:
                    forms = _forms(some, layout.places)
                    sums.append(SumItem(forms, (first, end), weight, begun=True))
        self._receive(own_messages, group, given, sums, messages, [layout.header] * count)

    def decode_messages(
        self, own_messages: Any, groups: Sequence[Sequence[PeerItem]], messages: Sequence[ByteArray]
    ) -> None:
        """See `PeerDevice`."""
        given = groups, messages
        if self._receive_again(own_messages, "decoded", given, chain.from_iterable(groups)):
            return
        _discard(chain.from_iterable(groups))
        parts = [
            SumItem(_forms(tensors, layout.places), (number, number + 1), None)
            for number, (tensors, layout) in enumerate(
                zip(groups, own_messages.layouts, strict=True)
            )
        ]
        headers = [layout.header for layout in own_messages.layouts]
        self._receive(own_messages, "decoded", given, parts, messages, headers)

    def decode_numbers(
        self, own_messages: Any, tensors: Sequence[PeerItem], numbers: object
    ) -> None:
        """See `PeerDevice`."""
        given = tensors, numbers
        if self._receive_again(own_messages, "numbers", given, tensors):
            return
        (layout,) = own_messages.layouts
        places = [place._replace(values=place.values - HEADER) for place in layout.places]
        _discard(tensors)
        part = SumItem(_forms(tensors, places), (0, 1), None)
        self._receive(own_messages, "numbers", given, [part], [numbers], [])

    def add_lost(self, residual: FloatArray, lost: FloatArray, times: float) -> None:
        """See `PeerDevice`."""
        self._staging.join()
        whole = tensor_of(residual)
        whole.add_(tensor_of(lost).mul_(times))  # two roundings
        whole.copy_(torch.where(whole.isfinite(), whole, 0.0))

    def begin_shares(
        self, name: str, tensors: Sequence[EncodeItem], shares: Shares, rank: int
    ) -> Any:
        """See `PeerDevice`."""

        def make_sender() -> ShareSender:
            kinds = tuple((item.codec.spec, item.grad.size) for item in tensors)
            total, lost = self.zeros(shares.size), self.zeros(shares.size)
            # Buckets are collected one after the other.
            numel = shares.ranks * shares.size
            if self._averages.numel() < numel:
                self._averages = torch.zeros(numel, dtype=torch.float32, device=self._device)
            averages = self._averages[:numel]
            parts = self._parts(tensors)
            return ShareSender(kinds, parts, shares, rank, total, lost, averages, self._device)

        return self._begin(name, tensors, shares, make_sender)

    def _share_sender(self, messages: _Messages) -> ShareSender:
        # Messages have no reference to it, as they may outlive an exchange that is no longer used.
        sender = self._exchanges[messages.name].sender
        assert isinstance(sender, ShareSender)  # of begin_shares
        return sender

    def add_shares(self, own_messages: Any, messages: Sequence[ByteArray]) -> tuple[Any, Any]:
        """See `PeerDevice`."""
        sender, ranks = self._share_sender(own_messages), len(messages)
        if not self._receive_again(own_messages, "shares", messages, ()):
            layout = own_messages.layouts[0]
            tensor = PeerTensor(sender.total.tensor, layout.places[0], ())
            sums = [SumItem({sender.form: [tensor]}, (0, ranks), 1.0 / ranks)]
            headers = [layout.header] * ranks
            self._receive(own_messages, "shares", messages, sums, messages, headers)
        sender.add_late()
        return sender.total, sender.lost

    def collect_shares(
        self,
        own_messages: Any,
        gathered: Any,
        codec: Codec,
        messages: Sequence[ByteArray],
        outputs: Sequence[FloatArray],
    ) -> None:
        """See `PeerDevice`."""
        sender, ranks = self._share_sender(own_messages), len(messages)
        if not self._receive_again(gathered, "shares", messages, ()):
            (layout,) = gathered.layouts
            tensors = [
                PeerTensor(average, layout.places[0], (), number)
                for number, average in enumerate(sender.averages.chunk(ranks))
            ]
            sums = [SumItem({peer_form_of(codec.spec): tensors}, (0, ranks), None)]
            headers = [layout.header] * ranks
            self._receive(gathered, "shares", messages, sums, messages, headers)
        for out in outputs:
            array_of(out).discard()
        self._staging.join()
        sender.collect([tensor_of(out) for out in outputs])

    def factor_device(self) -> FactorDevice | None:
        """This device."""
        return self

    def begin_products(self, name: str, matrices: Sequence[ProductItem], *, half: bool) -> Any:
        """See `FactorDevice`; torch multiplies."""
        kinds = kinds_of(matrices)
        # The sides of a power iteration take turns.
        exchange = self._of_factors.get((name, kinds, half))
        if exchange is None:
            exchange = self._of_factors[name, kinds, half] = FactorExchange(
                kinds, half, self._device
            )
        grads = [work.grad for work in matrices if work.grad is not None]
        with self._after(grads, [tensor_of(work.m) for work in matrices]):
            convert(grads)
            exchange.multiply(matrices)
        return _Factors(exchange.sent, self._staging, exchange)

    def settle(
        self,
        own_products: Any,
        average: object,
        matrices: Sequence[SettleItem],
        *,
        of_average: bool,
    ) -> None:
        """See `FactorDevice`."""
        own_products.exchange.settle(_data(average), matrices, of_average=of_average)

    def _receive_again(
        self, own_messages: _Messages, key: int | str, given: object, outputs: Iterable[PeerItem]
    ) -> bool:
        """Make the launches of the last step again, if tensors and messages are where they were then.

        Args:
            outputs: those of the tensors whose former elements do not count.

        Returns:
            Whether they are.
        """
        receiver = own_messages.receivers.get(key)
        if receiver is None or receiver.given != given:
            return False
        _discard(outputs)
        receiver.launch_again()
        self._check_later(own_messages, receiver)
        return True

    def _check_later(self, own_messages: _Messages, receiver: Receiver) -> None:
        """Let the next step with messages of this name see what the receiver has found."""
        if receiver.checks:
            self._checked.setdefault(own_messages.name, []).append(receiver)

    def _receive(
        self,
        own_messages: _Messages,
        key: int | str,
        given: object,
        sums: Sequence[SumItem],
        messages: Sequence[object],
        headers: Sequence[torch.Tensor],
    ) -> None:
        receiver = own_messages.receivers.get(key)
        if receiver is None:
            receiver = own_messages.receivers[key] = Receiver(len(messages), self._device)
        received = [_data(message).view(torch.uint8) for message in messages]
        receiver.launch(sums, received, headers)
        receiver.given = given
        self._check_later(own_messages, receiver)

    def _raise_found(self, name: str) -> None:
        """Read what was found in the messages of this name in the last step.

        Raises:
            ProtocolError: a message was damaged.
        """
        wrong = {rank for receiver in self._checked.pop(name, ()) for rank in receiver.damaged()}
        if wrong:
            ranks = ", ".join(map(str, sorted(wrong)))
            raise ProtocolError(
                f"a damaged message of rank {ranks} is in the averages of the last step, in the exchange "
                f"'{name}': it is none of these tensors, or has indices outside of them. Start from a "
                "checkpoint before that step, and see whether all ranks run the same script and versions; "
                "with compress.device: auto, messages are checked before they are used"
            )


def _forms(
    tensors: Sequence[PeerItem], places: Sequence[Place]
) -> dict[Form | KeptForm, list[PeerTensor]]:
    """Tensors by the form of their codecs."""
    forms: dict[Form | KeptForm, list[PeerTensor]] = {}
    for (codec, out, streams), place in zip(tensors, places, strict=True):
        form = peer_form_of(codec.spec)
        forms.setdefault(form, []).append(PeerTensor(tensor_of(out), place, streams))
    return forms


def _discard(tensors: Iterable[PeerItem]) -> None:
    """Former elements of outputs, which may be the gradients' own memory, do not count."""
    for item in tensors:
        array_of(item.out).discard()


def _data(message: object) -> torch.Tensor:
    assert isinstance(message, DeviceMessage)  # other devices' messages are not given to this one
    return message.data
