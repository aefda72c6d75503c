"""A disk that fails: what was committed is intact, the exit code is not 0, the message names a path, and the same
command goes on once the disk is well.

Errors are raised at every call that changes the disk (``fault_points``), and made by the kernel where it can: a file
size limit, and for root a small tmpfs that is full or read-only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.records.block import Block
from bench.records.store import Store
from tests.support.commands import Result
from tests.support.fault_points import Fault
from tests.support.faults import Event, Left, Server, evenly, events, left, toy_cell, whole_lines

FULL = "DRAFTBENCH_FULL" in os.environ
pytestmark = pytest.mark.timeout(0 if FULL else 300)


@dataclass(frozen=True)
class Bed:
    """One cell in one place, as it was after an unbroken run, and the commands that run and report it."""

    server: Server
    folder: Path
    command: list[str]
    begun: list[Event]
    """What a run does before its first step of decoding"""
    resumed: list[Event]
    """and what one does that has its first block already."""
    whole: Left

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def cell(self) -> Path:
        (found,) = (self.results / "runs").iterdir()
        return found

    def run(self, fault: Fault | None = None, module: str = "bench.run", max_bytes: int | None = None) -> Result:
        watched = self.results if fault else None
        return self.server(
            *self.command, scratch=self.folder, module=module, watched=watched, fault=fault, max_bytes=max_bytes
        )

    def report(self) -> Result:
        return self.run(module="bench.report")

    def finished(self) -> None:
        """Back to what the unbroken run left."""
        _empty(self.results)
        shutil.copytree(self.folder / "kept", self.results, dirs_exist_ok=True)

    def unfinished(self, blocks: int = 1) -> list[bytes]:
        """As if it had been killed after so many blocks, which are returned."""
        self.finished()
        (self.cell / "DONE").unlink()
        (self.cell / "traces.jsonl").unlink()
        lines = whole_lines(self.results)[:blocks]
        (self.cell / "blocks.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        return lines

    def goes_on(self) -> None:
        """The same command now finishes, with the results of a run that met no fault."""
        again = self.run()
        assert again.code == 0, again.err
        assert left(self.results) == self.whole


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path, server: Server) -> Bed:
    folder = tmp_path_factory.mktemp("storage")
    command = ["method=[pld,lookahead]", *toy_cell(tiny_model_folder, folder, folder / "results")]
    assert server(*command, scratch=folder, watched=folder / "results").code == 0
    shutil.copytree(folder / "results", folder / "kept")
    seen = events(folder)
    begun = seen[: [one.kind for one in seen].index("load")]
    bed = Bed(server, folder, command, begun, [], left(folder / "results"))
    bed.unfinished()
    assert server(*command, scratch=folder, watched=folder / "results").code == 0
    bed.resumed.extend(events(folder))
    return bed


def told(result: Result, results: Path) -> None:
    """One line with a path of the results, no traceback, and not a 0."""
    assert result.code in (1, 2), result.err
    assert "Traceback" not in result.err
    lines = [line for line in result.err.splitlines() if str(results) in line and ("rror" in line or "fail" in line)]
    assert lines, result.err


def strikes() -> list[tuple[str, str, str, bool]]:
    """Kinds of event, what they meet, and whether it lasts."""
    return [
        ("fsync", "before", "EIO", False),
        ("fsync", "after", "EIO", False),
        ("write", "half", "ENOSPC", True),
        ("write", "half", "EDQUOT", False),
        ("open", "before", "EROFS", True),
        ("replace", "before", "EIO", False),
        ("link", "before", "EACCES", True),
        ("mkdir", "before", "EROFS", True),
    ]


@pytest.mark.parametrize(("kind", "moment", "error", "lasting"), strikes())
def test_a_call_that_fails(bed: Bed, kind: str, moment: str, error: str, lasting: bool) -> None:
    """The run goes on from one block; a failure that spoils nothing may end in success, but then all is there."""
    found = [(True, event) for event in bed.begun if event.kind == kind]
    found += [(False, event) for event in bed.resumed if event.kind == kind]
    chosen = found if FULL else evenly(found, 3 if kind in ("fsync", "write") else 1)
    print(f"{len(chosen)} strikes")
    for fresh, event in chosen:
        if fresh:
            shutil.rmtree(bed.results)
        lines = [] if fresh else bed.unfinished()
        struck = bed.run(Fault(event.at, moment, error, lasting))
        if struck.code == 0:
            assert left(bed.results) == bed.whole
        else:
            told(struck, bed.results)
        assert whole_lines(bed.results)[: len(lines)] == lines, "old data is intact"
        bed.goes_on()


@pytest.mark.parametrize("room", [0, 100, 4000])
def test_a_file_that_may_not_grow(bed: Bed, room: int) -> None:
    """The kernel's own limit on a file's size stops a write half-way."""
    lines = bed.unfinished(2)
    size = (bed.cell / "blocks.jsonl").stat().st_size
    struck = bed.run(max_bytes=size + room)
    assert (bed.cell / "blocks.jsonl").read_bytes() == b"".join(line + b"\n" for line in lines) or room == 4000
    if struck.code:
        told(struck, bed.results)
    bed.goes_on()


@pytest.fixture
def small_disk(bed: Bed) -> Iterator[Callable[[str], bool]]:
    """Puts the results on a small disk of their own and sets its options; False where nobody may."""
    _empty(bed.results)
    mounted = _does("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(bed.results))

    def options(value: str) -> bool:
        return mounted and _does("mount", "-o", f"remount,{value}", str(bed.results))

    yield options
    if mounted:
        assert _does("umount", str(bed.results))
    bed.results.chmod(0o755)


@pytest.mark.parametrize("left_free", [0, 4096, 12288, 20480, 28672])
def test_a_full_disk(bed: Bed, small_disk: Callable[[str], bool], left_free: int) -> None:
    lines = bed.unfinished()
    ballast = bed.results / "ballast"
    if small_disk("size=256k"):
        free = shutil.disk_usage(bed.results).free
        ballast.write_bytes(b"x" * max(0, free - left_free))
        struck = bed.run()
    else:
        struck = bed.run(max_bytes=left_free)
    if left_free <= 4096:
        assert struck.code
    if struck.code:
        told(struck, bed.results)
        assert whole_lines(bed.results)[: len(lines)] == lines
    ballast.unlink(missing_ok=True)
    bed.goes_on()


@pytest.mark.parametrize("module", ["bench.run", "bench.report"])
def test_a_read_only_folder(bed: Bed, small_disk: Callable[[str], bool], module: str) -> None:
    lines = bed.unfinished()
    read_only = small_disk("ro")
    if not read_only:
        for path in (bed.results, bed.cell):
            path.chmod(0o555)
    struck = bed.run(module=module)
    told(struck, bed.results)
    assert whole_lines(bed.results) == lines
    assert small_disk("rw") or not read_only
    for path in (bed.results, bed.cell):
        path.chmod(0o755)
    bed.goes_on()


def _lose_a_block(cell: Path) -> None:
    lines = (cell / "blocks.jsonl").read_bytes().splitlines(keepends=True)
    (cell / "blocks.jsonl").write_bytes(b"".join(lines[:2]))


def _tear(cell: Path) -> None:
    os.truncate(cell / "blocks.jsonl", (cell / "blocks.jsonl").stat().st_size - 30)


def _zero_the_tail(cell: Path) -> None:
    size = (cell / "blocks.jsonl").stat().st_size
    _tear(cell)
    os.truncate(cell / "blocks.jsonl", size)  # what a file system without ordered data leaves after a power cut


def _lose_all(cell: Path) -> None:
    (cell / "blocks.jsonl").unlink()


@pytest.mark.parametrize("harm", [_lose_a_block, _tear, _zero_the_tail, _lose_all])
def test_blocks_that_are_lost_under_a_finished_cell_are_a_hole_and_are_measured_again(
    bed: Bed, harm: Callable[[Path], None]
) -> None:
    bed.finished()
    harm(bed.cell)
    reported = bed.report()
    assert reported.code == 1
    assert "blocks to run" in reported.last_line["holes"][0]
    bed.goes_on()
    assert bed.report().code == 0


def _zero_a_line(cell: Path) -> str:
    first, second, third = (cell / "blocks.jsonl").read_bytes().splitlines()
    (cell / "blocks.jsonl").write_bytes(b"\n".join([first, b"\0" * len(second), third, b""]))
    return "blocks.jsonl:2"


def _empty_mark(cell: Path) -> str:
    (cell / "DONE").write_bytes(b"")
    return "DONE"


def _zero_mark(cell: Path) -> str:
    (cell / "DONE").write_bytes(b"\0" * 60)
    return "DONE"


def _mark_of_another_kind(cell: Path) -> str:
    (cell / "DONE").write_bytes(b"[]")
    return "DONE"


def _lose_session(cell: Path) -> str:
    (path,) = (cell / "sessions").iterdir()
    path.unlink()
    return path.name


def _zero_session(cell: Path) -> str:
    (path,) = (cell / "sessions").iterdir()
    path.write_bytes(b"\0" * 900)
    return path.name


def _folder_for_a_file(cell: Path) -> str:
    (cell / "blocks.jsonl").unlink()
    (cell / "blocks.jsonl").mkdir()
    return "blocks.jsonl"


def files(results: Path) -> dict[Path, bytes]:
    """All but the page, which a report writes anew, and the lock."""
    paths = [path for path in results.rglob("*") if path.is_file() and not path.name.startswith(".owner.")]
    return {path: path.read_bytes() for path in paths if path.suffix != ".html"}


HARMS = [_zero_a_line, _empty_mark, _zero_mark, _mark_of_another_kind, _lose_session, _zero_session, _folder_for_a_file]


@pytest.mark.parametrize("harm", HARMS)
def test_damage_that_cannot_be_mended_is_named_and_left_as_it_is(bed: Bed, harm: Callable[[Path], str]) -> None:
    bed.finished()
    name = harm(bed.cell)
    before = files(bed.results)
    for result in (bed.run(), bed.report()):
        told(result, bed.cell)
        assert name in result.err
    assert files(bed.results) == before


def test_a_question_that_stands_there_twice_is_a_hole_since_it_would_weigh_double(bed: Bed) -> None:
    bed.finished()
    with (bed.cell / "blocks.jsonl").open("ab") as file:
        file.write(whole_lines(bed.results)[1] + b"\n")
    reported = bed.report()
    assert reported.code == 1
    assert "question q1 was recorded twice" in reported.last_line["holes"][0]


def test_a_folder_that_is_removed_under_its_writer_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "cell")
    with store.writing():
        store.append_block(Block(question_id="a", runs=[]))
        shutil.rmtree(store.folder)
        with pytest.raises(OSError, match="No such file") as lost:
            store.append_block(Block(question_id="a", runs=[]))
    assert str(store.folder) in str(lost.value)


def test_of_two_that_start_together_one_measures(bed: Bed) -> None:
    _empty(bed.results)
    both = bed.server.together([bed.command, bed.command], scratch=bed.folder)
    assert left(bed.results) == bed.whole, "no block twice"
    assert min(result.code for result in both) == 0
    for result in both:
        assert result.code == 0 or f"{bed.cell} is being written by another process" in result.err


def test_a_clock_that_was_set_back_matters_to_nobody(bed: Bed) -> None:
    """Files from the future: the killed owner's heartbeat, the blocks, the sessions."""
    bed.unfinished()
    for path in [*bed.cell.rglob("*"), bed.cell]:
        stamp = path.stat().st_mtime + 3 * 86400
        os.utime(path, (stamp, stamp))
    bed.goes_on()


@pytest.mark.parametrize("name", ["two words", "Größe 漢字 🙂", 'a\'s "quoted"', "100%", "#1 & more; $HOME ~"])
def test_results_lie_where_they_were_asked_for(bed: Bed, tmp_path: Path, name: str) -> None:
    results = tmp_path / name
    escaped = str(results).replace("\\", "\\\\").replace("'", "\\'")
    command = [*(one for one in bed.command if not one.startswith("results=")), f"results='{escaped}'"]
    result = bed.server(*command, scratch=tmp_path)
    assert result.code == 0, result.err
    assert left(results) == bed.whole
    assert bed.server(*command, scratch=tmp_path, module="bench.report").code == 0
    assert (results / "report.html").exists()


def _empty(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _does(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
