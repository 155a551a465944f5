"""Runs all ranks of a gossip algorithm in one process."""

from __future__ import annotations

from collections.abc import Sequence

from gradcomp.codec.arrays import ByteArray
from gradcomp.errors import ProtocolError
from gradcomp.exchange.rounds import Exchange, GossipRound

__all__ = ["run_gossip"]


def run_gossip(rounds: Sequence[GossipRound]) -> None:
    """Run one round per rank to its end, in lockstep.

    Raises:
        ProtocolError: ranks are at different requests, or the messages to a rank are not from the
            sources that it expects.
    """
    replies: list[dict[int, ByteArray] | None] = [None] * len(rounds)
    while True:
        requests = [_advance(*each) for each in zip(rounds, replies, strict=True)]
        names = [None if request is None else request.name for request in requests]
        if len(set(names)) > 1:
            raise ProtocolError(f"the ranks are at different exchanges: {names}")
        open_requests = [request for request in requests if request is not None]
        if not open_requests:
            return
        for rank, request in enumerate(open_requests):
            senders = [
                sender for sender, sending in enumerate(open_requests) if rank in sending.messages
            ]
            if senders != sorted(request.sources):
                raise ProtocolError(
                    f"in '{request.name}' rank {rank} expects messages from ranks {list(request.sources)}, "
                    f"and gets them from {senders}"
                )
            replies[rank] = {
                sender: open_requests[sender].messages[rank].copy() for sender in senders
            }


def _advance(round_: GossipRound, reply: dict[int, ByteArray] | None) -> Exchange | None:
    try:
        return next(round_) if reply is None else round_.send(reply)
    except StopIteration:
        return None
