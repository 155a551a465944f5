"""Shared parts of the builders of engine wheels: edits, digests, caching. Nothing is compiled."""

from __future__ import annotations

import dataclasses
import tarfile
import threading
from pathlib import Path

import pytest

from wheels import common as wheels

RELEASE = wheels.Release("engine", "1.2", "0" * 64)
EDIT = wheels.Edit(name="newer", file="sub/lists.txt", old="std 14\n", new="std 17\n", reason="why")
OPTIONS = {"ENGINE_WITH_GLOO": "1"}


def write_source(root: Path, text: str) -> Path:
    path = root / "sub" / "lists.txt"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


class TestApplyEdit:
    def test_replaces_the_text_and_nothing_else(self, tmp_path: Path) -> None:
        path = write_source(tmp_path, "a\nstd 14\nstd 20\n")
        wheels.apply_edit(tmp_path, EDIT)
        assert path.read_text() == "a\nstd 17\nstd 20\n"

    @pytest.mark.parametrize(("text", "count"), [("std 11\n", 0), ("std 14\nstd 14\n", 2)])
    def test_refuses_a_text_that_does_not_occur_once(
        self, tmp_path: Path, text: str, count: int
    ) -> None:
        path = write_source(tmp_path, text)
        with pytest.raises(wheels.BuildError, match=r"'newer' of sub/lists\.txt") as error:
            wheels.apply_edit(tmp_path, EDIT)
        assert f"exactly once, but occurs {count} times" in str(error.value)
        assert repr(EDIT.old) in str(error.value)
        assert path.read_text() == text

    def test_replaces_a_text_as_often_as_it_must_occur(self, tmp_path: Path) -> None:
        path = write_source(tmp_path, "std 14\nstd 14\n")
        wheels.apply_edit(tmp_path, dataclasses.replace(EDIT, count=2))
        assert path.read_text() == "std 17\nstd 17\n"
        with pytest.raises(wheels.BuildError, match="exactly 2 times, but occurs 0 times"):
            wheels.apply_edit(tmp_path, dataclasses.replace(EDIT, count=2))

    def test_names_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(wheels.BuildError, match=r"'newer': there is no file sub/lists\.txt"):
            wheels.apply_edit(tmp_path, EDIT)


class TestRecipeDigest:
    @pytest.mark.parametrize("field", ["file", "old", "new"])
    def test_changes_with_what_an_edit_does(self, field: str) -> None:
        changed = dataclasses.replace(EDIT, **{field: "other"})
        digest = wheels.recipe_digest(RELEASE, [EDIT], OPTIONS)
        assert wheels.recipe_digest(RELEASE, [changed], OPTIONS) != digest

    def test_changes_with_the_source_the_options_and_the_number_of_edits(self) -> None:
        digests = {
            wheels.recipe_digest(RELEASE, [EDIT], OPTIONS),
            wheels.recipe_digest(RELEASE, [], OPTIONS),
            wheels.recipe_digest(RELEASE, [EDIT], {"ENGINE_WITH_GLOO": "0"}),
            wheels.recipe_digest(dataclasses.replace(RELEASE, sha256="1" * 64), [EDIT], OPTIONS),
        }
        assert len(digests) == 4

    def test_does_not_change_with_the_wording_of_a_reason(self) -> None:
        reworded = dataclasses.replace(EDIT, reason="said better")
        digest = wheels.recipe_digest(RELEASE, [EDIT], OPTIONS)
        assert wheels.recipe_digest(RELEASE, [reworded], OPTIONS) == digest


class TestBuild:
    def test_takes_a_wheel_that_is_there(self, tmp_path: Path) -> None:
        wheel = tmp_path / "engine-1.2-cp311.whl"
        wheel.touch()
        assert wheels.build(tmp_path, RELEASE, lambda work: pytest.fail("built")) == wheel

    def test_result_is_complete_and_leftovers_are_removed(self, tmp_path: Path) -> None:
        (tmp_path / "build-interrupted").mkdir()

        def make(work: Path) -> Path:
            (work / "something-else").touch()
            wheel = work / "engine-1.2-cp311.whl"
            wheel.touch()
            return wheel

        wheel = wheels.build(tmp_path, RELEASE, make)
        assert wheel.parent == tmp_path
        assert sorted(path.name for path in tmp_path.iterdir()) == [wheel.name, "lock"]

    def test_failure_leaves_nothing_that_looks_like_a_wheel(self, tmp_path: Path) -> None:
        def make(work: Path) -> Path:
            (work / "engine-1.2-cp311.whl").touch()
            raise wheels.BuildError("no")

        with pytest.raises(wheels.BuildError, match="no"):
            wheels.build(tmp_path / "out", RELEASE, make)
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["lock"]

    def test_unpacks_the_release(self, tmp_path: Path) -> None:
        top = tmp_path / RELEASE.directory
        write_source(top, "text")
        archive = tmp_path / "engine.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(top, arcname=top.name)
        source = wheels.unpack(RELEASE, archive, tmp_path / "out")
        assert (source / "sub" / "lists.txt").read_text() == "text"

    def test_failed_command_is_named(self, capfd: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(wheels.BuildError, match="exit status 3 from: sh -c exit 3"):
            wheels.run(["sh", "-c", "exit 3"])
        assert capfd.readouterr().out == "+ sh -c exit 3\n"

    def test_second_build_waits_for_the_first(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        order = []

        def second() -> None:
            with wheels.exclusive(tmp_path):
                order.append("second")

        with wheels.exclusive(tmp_path):
            thread = threading.Thread(target=second)
            thread.start()
            thread.join(timeout=0.2)
            order.append("first")
        thread.join(timeout=10)
        assert order == ["first", "second"]
        assert "waiting for another build" in capfd.readouterr().out

    def test_compiles_at_least_one_file_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert wheels.compile_jobs() >= 1
        with monkeypatch.context() as without_affinity:  # as on macOS
            without_affinity.delattr(wheels.os, "sched_getaffinity")
            assert wheels.compile_jobs() >= 1
        monkeypatch.setattr(wheels, "BYTES_PER_COMPILE_JOB", 2**60)
        assert wheels.compile_jobs() == 1
