"""Checkpoints of all ranks: one folder a step, with a file for each rank and a manifest.

::

    DIR/step-000000000020/rank-00000-TOKEN.state   one for each rank; see `state_file`
    DIR/step-000000000020/manifest.json            written last: a folder without it is incomplete

Files get their names when they are complete and on the disk. A repeated save of a step has another
TOKEN, and its manifest replaces the earlier one at once. So a crash between any two operations
leaves the earlier checkpoints, or the new one, complete.

Without a shared file system every host has the manifest, and the files of its ranks.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from gradcomp.errors import StateError
from gradcomp.runtime.state.state_file import pack_state, unpack_state
from gradcomp.version import installed_version

__all__ = ["Checkpoints", "Gather", "Loaded"]

_log = logging.getLogger(__name__)

FORMAT = 1
_MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step-(\d{12})")
_MAX_STEP = 10**12
_TOKEN = re.compile(r"[0-9a-f]{16}")
_WRITTEN = re.compile(rf"\.?rank-\d{{5,}}-({_TOKEN.pattern})\.state(?:\.partial)?")
"""Names of files of states, the token in a group; others in a folder belong to the user."""

Gather = Callable[[bytes], Sequence[bytes]]
"""Gives every rank the bytes of all ranks, in rank order; every rank calls it."""


class Loaded(NamedTuple):
    """A checkpoint that all ranks have read.

    Attributes:
        step: its step.
        states: this rank's own state, or those of all ranks if their number has changed.
    """

    step: int
    states: dict[str, Any] | list[dict[str, Any]]


class _Manifest(NamedTuple):
    """A complete checkpoint."""

    folder: Path
    step: int
    token: str
    world_size: int
    ranks_per_node: int
    config: str
    files: list[dict[str, Any]]


class Checkpoints:
    """The checkpoints that one rank of a job writes and reads; all ranks call the same methods.

    Args:
        rank, world_size: as in the rank's pipeline.
        ranks_per_node: as in the pipeline's state.
        config: text about the run, such as `Config.digest_text`; with another one `load` warns.
        gather: a collective of all ranks.
    """

    def __init__(
        self, rank: int, world_size: int, ranks_per_node: int, config: str, gather: Gather
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._ranks_per_node = ranks_per_node
        self._config = config
        self._gather = gather
        self._known: dict[Path, set[str]] = {}
        """Tokens by directory, at its first use and of this job; others are of another job."""
        self._loaded: dict[Path, int] = {}
        """Step by directory, from a load to the next save."""

    def save(self, directory: str | Path, step: int, keep: int, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint; all ranks return when all have written theirs.

        Args:
            directory: made if it does not exist.
            step: in [0, 10**12), above the steps in ``directory`` unless this job has loaded one of
                them; checkpoints after the loaded one are then removed.
            keep: number of checkpoints that stay, at least 1. Of a symbolic link, only the link is
                removed.
            state: this rank's state.

        Raises:
            StateError: on all ranks, if any could not write, or another job writes in
                ``directory``. Earlier checkpoints stay.
        """
        home = Path(directory).absolute()
        folder = home / f"step-{step:012d}" if isinstance(step, int) else home
        token = self._agree(lambda: self._token(home, step, keep))[0]
        name = _file_name(self._rank, token)

        def write() -> str:
            data = pack_state(state)
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / name, data)
            return json.dumps({"bytes": len(data), "checksum": _checksum(data)})

        def commit() -> str:
            _write(folder / _MANIFEST, _sealed(content), unique=name)
            _sync(home)
            return ""

        try:
            files = [json.loads(line) for line in self._agree(write)]
            content = {
                "format": FORMAT,
                "gradcomp": installed_version(),
                "step": step,
                "token": token,
                "world_size": self._world_size,
                "ranks_per_node": self._ranks_per_node,
                "config": self._config,
                "files": files,
            }
        except StateError:
            with suppress(OSError):
                (folder / name).unlink(missing_ok=True)
                folder.rmdir()  # fails where other ranks still have files
            raise
        self._agree(commit)
        self._known[home].add(token)
        _prune(home, step, keep, self._loaded.pop(home, step))
        return folder

    def load(self, directory: str | Path, step: int | None = None) -> Loaded:
        """Read the newest checkpoint that is complete for every rank, or that of ``step``.

        Raises:
            StateError: on all ranks, if there is none, or that of ``step`` is damaged.
        """
        home = Path(directory).absolute()
        bound = _MAX_STEP
        while True:
            found = self._agree(partial(self._proposal, home, step, bound))
            if "" in found:
                lacking = ", ".join(
                    str(rank) for rank, proposal in enumerate(found) if not proposal
                )
                raise StateError(
                    f"{home} has no complete checkpoint for all ranks (none on ranks {lacking}): give "
                    "the directory that save() was given, on the same hosts or a shared file system"
                )
            steps = [int(proposal.split()[0]) for proposal in found]
            if len(set(found)) == 1:
                break
            # Ranks on other hosts lack the newest one, or have another job's.
            bound = min(steps) + (len(set(steps)) > 1)
            if step is not None:
                raise StateError(
                    f"the ranks found different checkpoints of step {step} in {home}: "
                    f"{', '.join(found)}; load() without a step takes the newest common one"
                )
        manifest = _read_manifest(home / f"step-{steps[0]:012d}")
        states: list[dict[str, Any]] = []
        self.together(lambda: states.extend(self._states(manifest)))
        self._known[home] = _tokens(home)
        self._loaded[home] = manifest.step
        of_rank = states[0] if self._fits(manifest) else states
        if manifest.config != self._config and self._rank == 0:
            _log.warning(
                "gradcomp: the checkpoint of step %d was saved by a run of another configuration, %s",
                manifest.step,
                manifest.config,
            )
        return Loaded(manifest.step, of_rank)

    def exist(self, directory: str | Path) -> bool:
        """Whether any rank finds a checkpoint in ``directory``, damaged or not."""
        home = Path(directory).absolute()
        return any(self._agree(lambda: "found" if _steps(home) else ""))

    def together(self, act: Callable[[], None]) -> None:
        """Call ``act`` on every rank; a StateError of any rank is raised on all."""

        def nothing() -> str:
            act()
            return ""

        self._agree(nothing)

    def _agree(self, act: Callable[[], str]) -> list[str]:
        """The results of ``act`` of all ranks; an error of any rank is raised on all.

        Raises:
            StateError: names the rank and the cause.
        """
        result, problem = "", ""
        try:
            result = act()
        except (StateError, OSError) as error:
            problem = str(error) or type(error).__name__
        lines = [
            json.loads(reply) for reply in self._gather(json.dumps([result, problem]).encode())
        ]
        problems = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(lines) if text]
        if problems:
            raise StateError("\n".join(problems))
        return [line for line, _ in lines]

    def _token(self, home: Path, step: int, keep: int) -> str:
        """A name for this save; rank 0's counts."""
        _check_step(step)
        if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
            raise StateError(f"keep is {keep!r}; it must be a whole number, at least 1")
        home.mkdir(parents=True, exist_ok=True)
        now = _tokens(home)
        foreign = now - self._known.setdefault(home, now)
        if foreign:
            raise StateError(
                f"another job writes checkpoints in {home} ({', '.join(sorted(foreign))}): give each "
                "job its own directory"
            )
        folder = home / f"step-{step:012d}"
        if folder.is_symlink():
            raise StateError(
                f"{folder} is a symbolic link, and save() does not change what it points to: remove the "
                "link, or give another step or directory"
            )
        last = max(_steps(home), default=-1)
        if last > step and home not in self._loaded:
            raise StateError(
                f"step is {step}, and {home} has a checkpoint of step {last} already: load() it "
                "first, give another directory, or remove it"
            )
        return secrets.token_hex(8)

    def _proposal(self, home: Path, step: int | None, limit: int) -> str:
        """Step and token of the newest complete checkpoint before ``limit``; "" for none."""
        if step is not None:
            _check_step(step)
            manifest = _read_manifest(home / f"step-{step:012d}")
            self._states(manifest)
            return f"{manifest.step} {manifest.token}"
        for candidate in sorted(_folders(home), reverse=True):
            if candidate >= limit:
                continue
            try:
                manifest = _read_manifest(home / f"step-{candidate:012d}")
                self._states(manifest)
            except (StateError, OSError) as error:
                _log.warning("gradcomp: rank %d skips a checkpoint: %s", self._rank, error)
            else:
                return f"{manifest.step} {manifest.token}"
        return ""

    def _fits(self, manifest: _Manifest) -> bool:
        saved = (manifest.world_size, manifest.ranks_per_node)
        return saved == (self._world_size, self._ranks_per_node)

    def _states(self, manifest: _Manifest) -> list[dict[str, Any]]:
        """The states that this rank needs: its own, or all if the number of ranks has changed."""
        fits = self._fits(manifest)
        ranks = [self._rank] if fits else range(manifest.world_size)
        return [_read_state(manifest, rank, fits) for rank in ranks]


def _check_step(step: object) -> None:
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < _MAX_STEP:
        raise StateError(f"step is {step!r}; it must be a whole number in [0, 10**12)")


def _read_state(manifest: _Manifest, rank: int, fits: bool) -> dict[str, Any]:
    path = manifest.folder / _file_name(rank, manifest.token)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise StateError(
            f"{path} is missing: "
            + (
                "start each rank on the host where it has saved, or share the directory"
                if fits
                else f"it was saved by {manifest.world_size} ranks, and another number of ranks needs "
                "the files of all of them: copy them to every host, or share the directory"
            )
        ) from None
    about = manifest.files[rank]
    if len(data) != about["bytes"] or _checksum(data) != about["checksum"]:
        raise StateError(
            f"{path} is damaged: it has {len(data)} bytes of checksum {_checksum(data)}, and its "
            f"manifest says {about['bytes']} of {about['checksum']}; load an earlier checkpoint"
        )
    return unpack_state(data)


def _read_manifest(folder: Path) -> _Manifest:
    path = folder / _MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise StateError(
            f"{path} is missing, so the checkpoint is incomplete; load another step"
        ) from None
    body, _, checksum = data.rstrip(b"\n").rpartition(b"\n")
    if _checksum(body).encode() != checksum:
        raise StateError(f"{path} is damaged, as its checksum differs; load another step")
    try:
        content = json.loads(body)
        if content["format"] != FORMAT:
            raise StateError(
                f"{path} has format {content['format']!r}, and this gradcomp reads {FORMAT}: load it "
                f"with gradcomp {content['gradcomp']}"
            )
        return _checked(folder, content)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(
            f"{path} is not a manifest of gradcomp ({error}); load another step"
        ) from error


def _checked(folder: Path, content: Mapping[str, Any]) -> _Manifest:
    """The manifest; raises ValueError where a value has a wrong type or range."""
    token, step, config, files = (content[key] for key in ("token", "step", "config", "files"))
    for key in ("step", "world_size", "ranks_per_node"):
        least = 0 if key == "step" else 1
        if not _is_count(content[key], least):
            raise ValueError(f"{key} is {content[key]!r:.40}; it must be an integer >= {least}")
    if folder.name != f"step-{step:012d}":
        raise StateError(f"{folder} has the manifest of step {step}: the folder was renamed")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ValueError(f"token is {token!r:.40}; it must be 16 hexadecimal digits")
    if not isinstance(config, str):
        raise ValueError(f"config is {config!r:.40}; it must be a text")
    if not isinstance(files, list) or len(files) != content["world_size"]:
        raise ValueError(f"files is {files!r:.40}; it must have an entry for each rank")
    for rank, about in enumerate(files):
        if not _is_count(about["bytes"], 0) or not isinstance(about["checksum"], str):
            raise ValueError(
                f"the file of rank {rank} is {about!r:.80}; it must have bytes and checksum"
            )
    return _Manifest(folder, *(content[key] for key in _Manifest._fields[1:]))


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _folders(home: Path) -> list[int]:
    """Steps with a folder, complete or not."""
    if not home.is_dir():
        return []
    found = ((_FOLDER.fullmatch(folder.name), folder) for folder in home.iterdir())
    return [int(match[1]) for match, folder in found if match and folder.is_dir()]


def _steps(home: Path) -> list[int]:
    """Steps with a manifest, damaged or not."""
    return [step for step in _folders(home) if (home / f"step-{step:012d}" / _MANIFEST).is_file()]


def _tokens(home: Path) -> set[str]:
    """Step and token of each checkpoint that can be read."""
    tokens = set()
    for step in _steps(home):
        with suppress(StateError, OSError):
            tokens.add(_read_manifest(home / f"step-{step:012d}").token)
    return tokens


def _prune(home: Path, step: int, keep: int, loaded: int) -> None:
    """Remove all but the newest ``keep``, and what interrupted saves have left.

    Those after the ``loaded`` one are no part of the way to ``step``; perhaps they are damaged.
    """
    kept = sorted({step, *(saved for saved in _steps(home) if saved <= min(loaded, step))})[-keep:]
    names = {f"step-{saved:012d}" for saved in kept}
    for folder in home.iterdir():
        if not _FOLDER.fullmatch(folder.name):
            continue
        with suppress(OSError):
            if folder.name in names:
                _remove_others(folder)
            elif folder.is_symlink():
                folder.unlink()  # what it points to belongs to somebody else
            else:
                (folder / _MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)


def _remove_others(folder: Path) -> None:
    """Remove files of other saves of the same step, which never got a manifest or were replaced."""
    if folder.is_symlink():
        return
    with suppress(StateError):  # a damaged manifest does not say which files are its own
        token = _read_manifest(folder).token
        for file in folder.iterdir():
            written = _WRITTEN.fullmatch(file.name)
            if written and written[1] != token:
                file.unlink(missing_ok=True)


def _file_name(rank: int, token: str) -> str:
    return f"rank-{rank:05d}-{token}.state"


def _sealed(content: Mapping[str, Any]) -> bytes:
    body = json.dumps(content, indent=1).encode()
    return body + b"\n" + _checksum(body).encode() + b"\n"


def _checksum(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _write(path: Path, data: bytes, unique: str = "") -> None:
    """Write a file that appears whole under its name; ``unique`` names this rank's own copy."""
    partial_file = path.with_name(f".{unique or path.name}.partial")
    try:
        with partial_file.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial_file.replace(path)
        _sync(path.parent)
    except BaseException as error:
        with suppress(OSError):
            partial_file.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise StateError(
            f"{path} cannot be written: {error.strerror or error}; earlier checkpoints are unchanged"
        ) from error


def _sync(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
