"""Checkpoints of all ranks: complete or absent, whatever happens while they are written."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from gradcomp import Pipeline, StateError
from gradcomp.runtime.state.checkpoint import Checkpoints
from gradcomp.runtime.state.state_file import pack_state, unpack_state


class World:
    """The checkpoints of ranks that are threads."""

    def __init__(self, size: int) -> None:
        self._barrier = Barrier(size, timeout=30)
        self._sent = [b""] * size
        self.ranks = [Checkpoints(r, size, 1, "spec", self._gather(r)) for r in range(size)]
        self.size = size

    def _gather(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def gather(data: bytes) -> list[bytes]:
            self._sent[rank] = data
            self._barrier.wait()
            found = list(self._sent)
            self._barrier.wait()
            return found

        return gather

    def all(self, act: Callable[[int, Checkpoints], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(act, range(self.size), self.ranks))

    def save(self, home: Path, step: int, keep: int = 3) -> None:
        self.all(lambda rank, one: one.save(home, step, keep, state(rank, self.size, step)))

    def load(self, home: Path, step: int | None = None) -> list[Any]:
        return self.all(lambda _, one: one.load(home, step))


def state(rank: int, size: int, step: int) -> dict[str, Any]:
    one = Pipeline("residual|topk(ratio=0.1)", rank, size).state_dict()
    one["rounds"]["w"] = step
    one["residual"]["w"] = np.full(1000, rank + step, np.float32)
    return one


def steps(home: Path) -> list[int]:
    return sorted(int(one.name.removeprefix("step-")) for one in home.iterdir())


def test_the_same_ranks_get_their_own_states(tmp_path: Path) -> None:
    world = World(2)
    for step in (10, 20):
        world.save(tmp_path / "new" / "folder", step)
    for step, expected in ((None, 20), (10, 10)):
        for rank, loaded in enumerate(World(2).load(tmp_path / "new" / "folder", step)):
            assert loaded.step == expected
            assert loaded.states["rank"] == rank
            assert loaded.states["residual"]["w"].tolist() == [rank + expected] * 1000
            assert list(loaded.states) == list(state(rank, 2, 1))


@pytest.mark.parametrize("size", [1, 3])
def test_another_number_of_ranks_gets_all_states(tmp_path: Path, size: int) -> None:
    World(2).save(tmp_path, 10)
    for loaded in World(size).load(tmp_path):
        assert [one["rank"] for one in loaded.states] == [0, 1]


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    world = World(2)
    for step in range(1, 6):
        world.save(tmp_path, step, keep=2)
    assert steps(tmp_path) == [4, 5]
    world.save(tmp_path, 5, keep=2)  # again: replaced, nothing is left over
    assert len(list((tmp_path / f"step-{5:012d}").iterdir())) == 3
    assert World(2).load(tmp_path)[0].step == 5


@pytest.mark.parametrize("how", ["flip", "cut", "missing", "manifest", "no manifest"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning_and_named_if_asked_for(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(2)
    for step in (10, 20):
        world.save(tmp_path, step)
    folder = tmp_path / f"step-{20:012d}"
    (victim,) = folder.glob("rank-00001-*")
    if "manifest" in how:
        victim = folder / "manifest.json"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    if how in ("missing", "no manifest"):
        victim.unlink()
    else:
        victim.write_bytes(data[:-5] if how == "cut" else data)
    again = World(2)
    assert [one.step for one in again.load(tmp_path)] == [10, 10]
    assert str(victim) in caplog.text
    with pytest.raises(StateError, match=rf"rank 1: .*{victim.name}"):
        World(2).load(tmp_path, 20)
    again.save(tmp_path, 30, keep=2)  # the way that led to 20 is abandoned
    assert steps(tmp_path) == [10, 30]
    again.load(tmp_path, 10)
    again.save(tmp_path, 15)
    assert steps(tmp_path) == [10, 15]


def sealed(body: bytes) -> bytes:
    return body + b"\n" + blake2b(body, digest_size=16).hexdigest().encode() + b"\n"


@pytest.mark.parametrize(
    "changed",
    [
        {"files": []},
        {"files": None},
        {"files": [3, 3]},
        {"files": [{"bytes": "1", "checksum": ""}] * 2},
        {"files": [{"bytes": -1, "checksum": ""}] * 2},
        {"files": [{"bytes": 1, "checksum": None}] * 2},
        {"world_size": "x"},
        {"world_size": 2.0},
        {"world_size": 10**40},
        {"ranks_per_node": 0},
        {"token": "\0"},
        {"token": "../../../../x"},
        {"token": ["a"]},
        {"config": {"a": 1}},
        {"step": "20"},
        {"step": -20},
        {"step": True},
        {"format": [1]},
        b"[" * 100_000,
        b"[]",
        b"null",
        b'{"format": 1}',
        b'{"format": ' + b"9" * 5000 + b"}",
        b"\xff",
    ],
)
def test_a_sealed_manifest_of_wrong_types_is_skipped(
    tmp_path: Path, changed: dict[str, Any] | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(2)
    for step in (10, 20):
        world.save(tmp_path, step)
    manifest = tmp_path / f"step-{20:012d}" / "manifest.json"
    if isinstance(changed, dict):
        content = json.loads(manifest.read_bytes().rpartition(b"\n}")[0] + b"}")
        changed = json.dumps({**content, **changed}).encode()
    manifest.write_bytes(sealed(changed))
    assert [loaded.step for loaded in World(2).load(tmp_path)] == [10, 10]
    assert f"skips a checkpoint: {manifest.parent}" in caplog.text
    with pytest.raises(StateError, match=f"rank 0: {manifest.parent}"):
        World(2).load(tmp_path, 20)


def test_a_symbolic_link_is_removed_and_its_target_is_not_changed(tmp_path: Path) -> None:
    home, archive = tmp_path / "home", tmp_path / "archive"
    world = World(2)
    for step in (1, 2):
        world.save(home, step)
    folder = home / f"step-{1:012d}"
    folder.rename(archive)
    folder.symlink_to(archive)
    (home / f"step-{7:012d}").symlink_to(tmp_path / "nowhere")
    before = {file.name: file.read_bytes() for file in archive.iterdir()}
    assert World(2).load(home, 1)[0].step == 1
    again = World(2)
    again.load(home, 1)
    with pytest.raises(StateError, match=r"rank 0: .*1 is a symbolic link, and save\(\) does not"):
        again.save(home, 1)
    world.save(home, 3, keep=1)
    assert steps(home) == [3]
    assert {file.name: file.read_bytes() for file in archive.iterdir()} == before


def test_files_of_interrupted_saves_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    world = World(2)
    for step in (1, 2):
        world.save(tmp_path, step)
        folder = tmp_path / f"step-{step:012d}"
        (folder / "optimizer.pt").write_bytes(b"of the user")
        token = "0123456789abcdef"
        for name in (f".rank-00000-{token}.state.partial", f"rank-00001-{token}.state"):
            (folder / name).write_bytes(b"a part")
    stale = tmp_path / f"step-{9:012d}"
    stale.mkdir()
    (stale / ".rank-00000-0123456789abcdef.state.partial").write_bytes(b"a part")
    world.save(tmp_path, 3)
    assert steps(tmp_path) == [1, 2, 3]
    for step in (1, 2):
        names = sorted(file.name for file in (tmp_path / f"step-{step:012d}").iterdir())
        assert names[:2] == ["manifest.json", "optimizer.pt"]
        assert len(names) == 4
        assert token not in "".join(names)


def test_an_interrupt_while_a_file_is_written_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        World(1).ranks[0].save(tmp_path, 1, 3, state(0, 1, 1))
    assert not list((tmp_path / f"step-{1:012d}").iterdir())


def test_a_state_that_cannot_be_packed_on_one_rank_fails_all(tmp_path: Path) -> None:
    states = [{"plain": 1}, {"array": np.array([{}])}]

    def save(rank: int, checkpoints: Checkpoints) -> str:
        with pytest.raises(StateError) as caught:
            checkpoints.save(tmp_path, 1, 3, states[rank])
        return str(caught.value)

    for message in World(2).all(save):
        assert "rank 1: the array 'array' is of object" in message


def test_hosts_without_a_shared_file_system(tmp_path: Path) -> None:
    world = World(2)
    homes = [tmp_path / "host0", tmp_path / "host1"]
    for step in (10, 20):
        world.all(lambda r, one, step=step: one.save(homes[r], step, 3, state(r, 2, step)))
    (homes[1] / f"step-{20:012d}" / "manifest.json").unlink()  # killed before its end there
    loaded = World(2).all(lambda rank, one: one.load(homes[rank]))
    assert [(one.step, one.states["rank"]) for one in loaded] == [(10, 0), (10, 1)]
    with pytest.raises(StateError, match="needs the files of all of them: copy them to every host"):
        World(1).load(homes[0], 20)


def test_a_rank_that_cannot_write_fails_all_and_earlier_checkpoints_stay(tmp_path: Path) -> None:
    world = World(2)
    world.save(tmp_path, 10)
    (tmp_path / f"step-{20:012d}").write_text("a file where the folder should be")
    with pytest.raises(StateError, match=rf"rank 0: .*step-{20:012d}"):
        world.save(tmp_path, 20)
    assert World(2).load(tmp_path)[0].step == 10


def test_a_disk_that_is_full_is_named_and_earlier_checkpoints_stay(tmp_path: Path) -> None:
    world = World(2)
    world.save(tmp_path, 10)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # a state has over 4000 bytes
    try:
        with pytest.raises(
            StateError, match=r"rank 0: .*/rank-00000-.* cannot be written: File too"
        ):
            world.save(tmp_path, 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert steps(tmp_path) == [10]
    world.save(tmp_path, 20)
    assert [one.step for one in World(2).load(tmp_path)] == [20, 20]


def test_two_jobs_in_one_directory(tmp_path: Path) -> None:
    first, second = World(1), World(1)
    first.save(tmp_path, 10)
    second.save(tmp_path, 11)
    with pytest.raises(StateError, match=r"another job writes checkpoints in .*its own directory"):
        first.save(tmp_path, 20)
    with pytest.raises(
        StateError, match=r"step is 5, .* has a checkpoint of step 11 already: load"
    ):
        World(1).save(tmp_path, 5)


@pytest.mark.parametrize(
    ("step", "keep", "says"),
    [
        (1, 0, "keep is 0"),
        (1, True, "keep is True"),
        (-1, 1, "step is -1"),
        (1.0, 1, r"step is 1\.0"),
    ],
)
def test_numbers_out_of_range(tmp_path: Path, step: Any, keep: Any, says: str) -> None:
    with pytest.raises(StateError, match=says):
        World(1).save(tmp_path, step, keep)
    assert not list(tmp_path.iterdir())


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"has no complete checkpoint .*none on ranks 0, 1"):
        World(2).load(tmp_path / "absent")


def test_whether_there_is_a_checkpoint(tmp_path: Path) -> None:
    world = World(2)
    assert world.all(lambda _, one: one.exist(tmp_path / "absent")) == [False, False]
    (tmp_path / f"step-{10:012d}").mkdir()  # as a job leaves it that is killed while it saves
    assert world.all(lambda _, one: one.exist(tmp_path)) == [False, False]
    world.save(tmp_path, 20)
    homes = [tmp_path, tmp_path / "absent"]  # as on another host
    assert world.all(lambda rank, one: one.exist(homes[rank])) == [True, True]


def test_a_packed_state_keeps_arrays_of_any_level_dtype_and_shape() -> None:
    arrays = {
        "half": np.ones((2, 3), np.float16),
        "counter": np.array(7, np.int64),
        "mask": np.array([True, False]),
        "none": np.empty((0, 4), np.complex64),
        "swapped": np.arange(3, dtype=">f8"),
    }
    packed = {"module": arrays, "gossip": {"step": 3, "x_hat": {"a/b": np.ones(2, np.float32)}}}
    found = unpack_state(pack_state(packed))
    assert [*found] == [*packed]
    assert [*found["module"]] == [*arrays]
    for name, array in arrays.items():
        one = found["module"][name]
        assert one.shape == array.shape
        assert one.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(one, array)
    assert found["gossip"]["step"] == 3
    assert found["gossip"]["x_hat"]["a/b"].tolist() == [1, 1]


def test_objects_are_not_packed() -> None:
    with pytest.raises(StateError, match="'module/w' is of object; it must be of bool, or"):
        pack_state({"module": {"w": np.array([{}])}})


@pytest.mark.parametrize("value", [{1, 2}, float, {"a": b"bytes"}])
def test_other_objects_are_not_packed_either(value: Any) -> None:
    with pytest.raises(
        StateError, match=r"cannot be written .*texts, numbers, lists, mappings and"
    ):
        pack_state({"x": value})


@pytest.mark.parametrize(
    "head",
    [
        {"plain": {"a": None}, "arrays": [[["a"], "<f4", [2**70]]]},
        {"plain": {"a": None}, "arrays": [[["a"], "<f4", [2**62, 2**62]]]},
        {"plain": {"a": None}, "arrays": [[["a"], "<f4", [0, 2**70]]]},
        {"plain": {"a": None}, "arrays": [[["a"], "<f4", [1] * 100]]},
        {"plain": {"a": None}, "arrays": [[["a"], ["<f4"], [1]]]},
        {"plain": {"a": None}, "arrays": [[[["a"]], "<f4", [0]]]},
        {"plain": {"a": None}, "arrays": [[[], "<f4", [0]]]},
        {"plain": [], "arrays": []},
        {"plain": None, "arrays": []},
        {"plain": {}, "arrays": 3},
        {},
        [],
    ],
)
def test_a_sealed_state_of_wrong_types_or_sizes_is_refused(head: Any) -> None:
    text = json.dumps(head).encode()
    body = b"gradcomp state 2" + len(text).to_bytes(8, "little") + text
    with pytest.raises(StateError, match=r"are not a state of gradcomp \(.*\): load a file"):
        unpack_state(body + blake2b(body, digest_size=32).digest())


def test_every_damage_of_a_packed_state_is_found() -> None:
    data = pack_state(state(0, 1, 1))
    assert pack_state(unpack_state(data)) == data
    draw = random.Random(1)
    for _ in range(600):
        damaged = bytearray(data)
        if draw.random() < 0.7:
            damaged[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        else:
            del damaged[draw.randrange(len(data)) :]
        with pytest.raises(StateError):
            unpack_state(bytes(damaged))


def _forever(home: Path) -> None:
    world = World(1)
    step = world.load(home)[0].step
    while True:
        step += 1
        world.save(home, step, keep=1)


def test_sigkill_at_any_time_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    World(1).save(tmp_path, 0)
    draw = random.Random(2)
    reached = 0
    for _ in range(30):
        process = multiprocessing.get_context("fork").Process(target=_forever, args=(tmp_path,))
        process.start()
        time.sleep(draw.uniform(0.0, 0.1))
        assert process.pid
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        loaded = World(1).load(tmp_path)[0]
        assert loaded.step >= reached
        assert loaded.states["rounds"]["w"] == loaded.step
        reached = loaded.step
    assert reached > 0
