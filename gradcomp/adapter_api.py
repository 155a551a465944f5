"""The names that adapters use, besides `gradcomp` itself, `gradcomp.errors` and `gradcomp.gossip`.

An adapter carries the requests of rounds over one engine: it gives an `Engine`, holds a `Pipeline`
for each rank, and hands gradients to a `Collector`; docs/adding-an-engine.md builds one. An
import-linter contract refuses imports of the packages behind this module.
"""

from __future__ import annotations

from gradcomp.codec.arrays import ByteArray, FloatArray, as_float32, room
from gradcomp.codec.frame import split_frames
from gradcomp.codec.spec import Spec
from gradcomp.codec.threads import threads, use_processors
from gradcomp.exchange.engine import Driver, Engine, JobLinks
from gradcomp.exchange.nodes import Node
from gradcomp.exchange.rates import Rates
from gradcomp.exchange.rounds import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Exchange,
    GossipRound,
    RankGroup,
    Ready,
    Request,
    Round,
)
from gradcomp.exchange.select import exchange_pattern
from gradcomp.exchange.state_kinds import state_of
from gradcomp.runtime.agree.agreement import (
    agreement_line,
    build_text,
    check_agreement,
    model_text,
)
from gradcomp.runtime.agree.comparison import (
    check_digests,
    check_equal,
    digest_parameters,
    ranks_text,
    read_object,
)
from gradcomp.runtime.agree.http_store import HttpStore
from gradcomp.runtime.agree.marks import Marks
from gradcomp.runtime.collector import Collector, Route
from gradcomp.runtime.controls import Controls
from gradcomp.runtime.measure.end_report import log_at_end
from gradcomp.runtime.measure.stats import Stats
from gradcomp.runtime.membership import common_state, moved, placed, resized, take_common_state
from gradcomp.runtime.outer.options import OuterOptions
from gradcomp.runtime.outer.steps import OuterSteps, Values
from gradcomp.runtime.pipeline import Pipeline
from gradcomp.runtime.resolve import Resolved
from gradcomp.runtime.start_report import StartReport
from gradcomp.runtime.state.checkpoint import Checkpoints
from gradcomp.runtime.state.checkpointed import Checkpointed
from gradcomp.runtime.state.loss_scale import check_scale
from gradcomp.runtime.state.state_file import pack_state, unpack_state
from gradcomp.runtime.unedited import Patch, Unedited, run_unedited

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "ByteArray",
    "Checkpointed",
    "Checkpoints",
    "Collector",
    "Controls",
    "Driver",
    "Engine",
    "Exchange",
    "FloatArray",
    "GossipRound",
    "HttpStore",
    "JobLinks",
    "Marks",
    "Node",
    "OuterOptions",
    "OuterSteps",
    "Patch",
    "Pipeline",
    "RankGroup",
    "Rates",
    "Ready",
    "Request",
    "Resolved",
    "Round",
    "Route",
    "Spec",
    "StartReport",
    "Stats",
    "Unedited",
    "Values",
    "agreement_line",
    "as_float32",
    "build_text",
    "check_agreement",
    "check_digests",
    "check_equal",
    "check_scale",
    "common_state",
    "digest_parameters",
    "exchange_pattern",
    "log_at_end",
    "model_text",
    "moved",
    "pack_state",
    "placed",
    "ranks_text",
    "read_object",
    "resized",
    "room",
    "run_unedited",
    "split_frames",
    "state_of",
    "take_common_state",
    "threads",
    "unpack_state",
    "use_processors",
]
