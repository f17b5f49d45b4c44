"""Reads the files below a folder with the readers of this package, and tells the jobs apart.

One compressed file at a time is unpacked: a node's temporary folder may be memory.

Files with a common identity are of one job. Files without one join the others of their folder, and
folders join their siblings, unless something contradicts: another identity of the same kind,
another number of ranks, a second file of the same kind from the same rank, or times that are more
than a day apart. A console repeats what the logs of ranks have: equal lines and processes prove
that it is of their job, and other lines of the same ranks that it is not.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import stat
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from types import ModuleType

from torchcoll.core.bounds import GZIP, UnpackBudget
from torchcoll.core.errors import (
    TorchcollError,
    UnreadableError,
    brief,
    cut_text,
    nearest_file,
    one_line,
)
from torchcoll.core.opening import common_folder, open_to_read, signals_held, unpack
from torchcoll.core.units import counted, format_size
from torchcoll.core.variables import masked
from torchcoll.parts.postmortem.evidence import (
    LOGS,
    CallSeen,
    FileRead,
    GroupSeen,
    JobEvidence,
    identities_of_path,
    rank_of_path,
)

# In the order in which they are asked. Formats that are recognised by less evidence come later.
READERS = (
    "call_evidence",
    "stack_evidence",
    "log_evidence",
)
_BEGIN_BYTES = 1 << 16  # of a file, for recognizes()
_MOST_FILES = 100_000
_MOST_DEPTH = 16  # folders below folders
# Calls that are kept, 500 bytes each. Of every rank the last ones, at least so many.
_MOST_CALLS, _FEWEST_CALLS_OF_RANK = 400_000, 64
_LOGS = (".log", ".err", ".out", ".txt")


@dataclass
class FolderEvidence:
    """What the files of a folder say. left_out, unread: (path, why)."""

    path: str
    jobs: list[JobEvidence] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)  # files that say nothing
    unread: list[tuple[str, str]] = field(default_factory=list)  # that may have said something
    files: int = 0  # how many there are

    def add_unread(self, shown: str, why: str) -> None:
        """Note a file that could not be read, or only in part."""
        self.left_out.append((shown, why))
        self.unread.append((shown, why))


def read_folder(path: str, progress: Callable[[str], None] | None = None) -> FolderEvidence:
    """Read all files below a folder, or a single file. progress: gets a text before each file.

    Raises UnreadableError if there is no such folder or file, or none of its files says anything.
    """
    folder = FolderEvidence(path)
    readers = [importlib.import_module(f"torchcoll.parts.postmortem.{name}") for name in READERS]
    recognized: list[tuple[str, str, ModuleType]] = []
    empty: list[str] = []
    for shown, real in files_of(path, folder):
        folder.files += 1
        try:
            if not os.path.getsize(real):
                empty.append(shown)
                continue
            begin = _begin(real, shown)
            reader = next((r for r in readers if r.recognizes(Path(real), begin)), None)
        except (OSError, TorchcollError) as error:
            folder.add_unread(shown, _why(error))
            continue
        if reader is None:
            folder.left_out.append((shown, "not a format that postmortem reads"))
        else:
            recognized.append((shown, real, reader))
    calls_of_file = _MOST_CALLS // max(1, len(recognized))
    files = [FileEvidence(shown, item) for shown, item in _empty_logs(empty, folder.left_out)]
    for number, (shown, real, reader) in enumerate(recognized, 1):
        if progress is not None:
            size = format_size(os.path.getsize(real))
            progress(f"reading {one_line(shown)} ({size}), file {number} of {len(recognized)}")
        for item in _read(shown, real, reader, folder):
            _keep_last_calls(item, calls_of_file)
            files.append(FileEvidence(shown, item))
    if not files:
        raise _nothing_readable(folder, [real for _, real, _ in recognized])
    folder.jobs = jobs_of(files)
    return folder


def files_of(path: str, evidence: FolderEvidence) -> Iterator[tuple[str, str]]:
    """Yields (path relative to the folder, path) of each file, in the order of their names.

    Links are followed. A file or folder with several names is read once.
    """
    if not os.path.isdir(path):
        if not os.path.lexists(path):
            raise UnreadableError("folder", path, "a folder that exists", nearest_file(path))
        yield os.path.basename(path), path
        return

    def unreadable(error: OSError) -> None:
        if error.filename == path:
            raise UnreadableError("folder", path, f"one to read ({error.strerror})") from None
        evidence.add_unread(os.path.relpath(error.filename, path), _why(error))

    seen = {_identity(os.stat(path))}
    count = 0
    for folder, subfolders, names in os.walk(path, onerror=unreadable, followlinks=True):
        kept = []
        for name in sorted([*subfolders, *names]):
            real = os.path.join(folder, name)
            shown = os.path.relpath(real, path)
            try:
                status = os.stat(real)
            except OSError as error:  # a broken link
                evidence.left_out.append((shown, _why(error)))
                continue
            if _identity(status) in seen:
                evidence.left_out.append((shown, "the same file or folder as another one"))
                continue
            seen.add(_identity(status))
            if stat.S_ISDIR(status.st_mode) and shown.count(os.sep) == _MOST_DEPTH:
                evidence.add_unread(shown, f"more than {_MOST_DEPTH} folders deep")
            elif stat.S_ISDIR(status.st_mode):
                kept.append(name)
            elif not stat.S_ISREG(status.st_mode):
                evidence.left_out.append((shown, "not a regular file"))
            elif count == _MOST_FILES:
                evidence.add_unread(shown, f"more than {_MOST_FILES} files: name a subfolder")
            else:
                count += 1
                yield shown, real
        subfolders[:] = kept


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _begin(path: str, shown: str) -> bytes:
    """The first 64 KiB of a file, or of what it unpacks to."""
    with open_to_read(path) as source:
        if not source.peek(2).startswith(GZIP):
            return source.read(_BEGIN_BYTES)
        begin = b""
        for piece in _unpacked(source, shown):
            begin += piece
            if len(begin) >= _BEGIN_BYTES:
                break
        if not begin:
            raise UnreadableError("file", shown, "a .gz that can be unpacked")
        return begin[:_BEGIN_BYTES]


@contextlib.contextmanager
def _plain(path: str, shown: str) -> Iterator[str]:
    """The path of the file, or of a plain copy if it is compressed with gzip. The copy is removed
    at the end.
    """
    with open_to_read(path) as source:
        if not source.peek(2).startswith(GZIP):
            yield path
            return
        with contextlib.ExitStack() as stack:
            with signals_held():
                copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="torchcoll-"))
            for piece in _unpacked(source, shown):
                copy.write(piece)
            copy.flush()
            yield copy.name


def _unpacked(source: BufferedReader, shown: str) -> Iterator[bytes]:
    """What a gzip file unpacks to; of a damaged one, or one without an end, what it has."""
    with contextlib.suppress(zlib.error, EOFError):
        yield from unpack(source, UnpackBudget("file", shown))


def _empty_logs(
    paths: list[str], left_out: list[tuple[str, str]]
) -> Iterator[tuple[str, JobEvidence]]:
    """The empty files that are logs of a rank: it had nothing to complain of."""
    for shown in paths:
        rank = rank_of_path(shown)
        if rank is None or not shown.endswith(_LOGS):
            left_out.append((shown, "empty"))
        else:
            what = "stdout" if "stdout" in os.path.basename(shown) else "log"
            evidence = JobEvidence(identities=identities_of_path(shown))
            evidence.files = [FileRead(shown, what, (rank,))]
            yield shown, evidence


def _read(shown: str, path: str, reader: ModuleType, folder: FolderEvidence) -> list[JobEvidence]:
    try:
        with _plain(path, shown) as readable:
            evidence: list[JobEvidence] = reader.read_evidence(Path(readable), shown)
        for item in evidence:
            item.check_ranks()
    except (OSError, TorchcollError) as error:
        folder.add_unread(shown, _why(error))
        return []
    except (MemoryError, RecursionError, ArithmeticError, LookupError, TypeError, ValueError) as e:
        # One damaged file must not hide what the others say.
        folder.add_unread(shown, f"damaged ({type(e).__name__}: {brief(e)})")
        return []
    kept = []
    for item in evidence:
        says = item.calls or item.events or item.last_number or item.nodes or item.groups
        if says or item.texts or any(seen.ranks for seen in item.files):
            kept.append(item)
    if not kept:
        folder.left_out.append((shown, "says nothing about what happened"))
    return kept


def _keep_last_calls(evidence: JobEvidence, most: int) -> None:
    """Drop the calls of each rank before its last ones, and keep the number of its last call."""
    for call in evidence.calls:
        if call.peer is not None:
            continue
        key = (call.rank, call.group)
        evidence.last_number[key] = max(call.number, evidence.last_number.get(key, 0))
        if call.reliable_state and call.state == "completed":
            evidence.last_completed[key] = max(call.number, evidence.last_completed.get(key, 0))
    calls_of: dict[int, list[CallSeen]] = defaultdict(list)
    for call in evidence.calls:
        calls_of[call.rank].append(call)
    most = max(_FEWEST_CALLS_OF_RANK, most // max(1, len(calls_of)))
    evidence.calls = [call for calls in calls_of.values() for call in calls[-most:]]


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or brief(error)})"
    return one_line(error)


_FAILURE = re.compile(rb"(?i)\b(?:error|fault|fatal|failed|failure|exception|aborted|panic)\b")


def _first_failure(paths: Sequence[str]) -> str:
    """The first line that sounds like a failure, of files that say nothing which is known."""
    for path in paths:
        with open_to_read(path) as file:
            for line in file.read(_BEGIN_BYTES).splitlines():
                if _FAILURE.search(line):
                    text = cut_text(masked(one_line(line.decode(errors="replace").strip())), 160)
                    return f" The first line that sounds like a failure is: {text}."
    return ""


def _nothing_readable(folder: FolderEvidence, paths: Sequence[str]) -> UnreadableError:
    see = "See docs/postmortem.md for what to collect."
    if not folder.left_out:
        return UnreadableError("folder", f"no file in {folder.path}", "what a job left", see)
    shown, why = folder.left_out[0]
    rest = len(folder.left_out) - 1
    more = f", and {counted(rest, 'more file')}" if rest else ""
    # Not as the value, which is cut: a pickle is refused by the name that comes last.
    action = f"No file says anything: {shown} ({why}){more}.{_first_failure(paths)} {see}"
    return UnreadableError("folder", folder.path, "what a job left", action)


# Which files are of one job.

# Kinds of identities of which a job can have several: one for each process group, for example.
_SEVERAL_IN_ONE_JOB = {"communicator", "host", "pod", "step"}
# Kinds of events in which a rank itself speaks.
_SAID_BY_THE_RANK = ("exception", "timeout", "peer_lost", "mismatch")
_DAY_NS = 86_400 * 10**9
# torchrun starts a job again in the same log folder: each attempt ends for a reason of its own.
_ATTEMPT = re.compile(r"(?:^|/)(attempt_\d+)(?:/|$)")


@dataclass
class FileEvidence:
    """What one file says of one job. shown: its path relative to the folder."""

    shown: str
    evidence: JobEvidence

    @property
    def attempt(self) -> str:
        match = _ATTEMPT.search(self.shown.replace(os.sep, "/"))
        return match[1] if match else ""


@dataclass
class _Cluster:
    """Files that are of one job."""

    files: list[FileEvidence]
    identities: set[str] = field(default_factory=set)
    # (folder, kind of file, rank)
    sources: set[tuple[str, str, int]] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    attempts: set[str] = field(default_factory=set)
    pids: dict[int, int] = field(default_factory=dict)
    named_pids: set[int] = field(default_factory=set)  # by events without a rank, as of the kernel
    # rank -> what it says in a log of its own, and in a console
    log_lines: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    console_lines: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    first_ns: int | None = None
    last_ns: int | None = None

    @classmethod
    def of(cls, file: FileEvidence) -> _Cluster:
        evidence = file.evidence
        cluster = cls([file], set(evidence.identities))
        cluster.first_ns, cluster.last_ns = evidence.first_ns, evidence.last_ns
        if evidence.ranks is not None:
            cluster.sizes.add(evidence.ranks)
        if file.attempt:
            cluster.attempts.add(file.attempt)
        folder = os.path.dirname(file.shown)
        for seen in evidence.files:
            what = "log" if seen.what in LOGS else seen.what
            cluster.sources |= {(folder, what, rank) for rank in seen.ranks}
        is_log = any(seen.what in LOGS for seen in evidence.files)
        file_ranks = {rank for seen in evidence.files for rank in seen.ranks}
        for event in evidence.events if is_log else ():
            if event.rank is not None and event.kind in _SAID_BY_THE_RANK:
                kind = "log" if event.rank in file_ranks else "console"
                cluster.sources.add((folder, kind, event.rank))
                (cluster.log_lines if event.rank in file_ranks else cluster.console_lines)[
                    event.rank
                ].add(event.text)
        cluster.pids = dict(evidence.pids)
        cluster.named_pids = {e.pid for e in evidence.events if e.pid and e.rank is None}
        return cluster

    def add(self, other: _Cluster) -> None:
        self.files += other.files
        self.identities |= other.identities
        self.sources |= other.sources
        self.sizes |= other.sizes
        self.attempts |= other.attempts
        self.pids |= other.pids
        self.named_pids |= other.named_pids
        for mine, others in (
            (self.log_lines, other.log_lines),
            (self.console_lines, other.console_lines),
        ):
            for rank, texts in others.items():
                mine[rank] |= texts
        times = [t for t in (self.first_ns, other.first_ns) if t is not None]
        self.first_ns = min(times, default=None)
        times = [t for t in (self.last_ns, other.last_ns) if t is not None]
        self.last_ns = max(times, default=None)

    @property
    def is_general(self) -> bool:
        """Whether the files are of a host or a cluster rather than of a job."""
        return not self.sources and not self.identities

    def shares_identity(self, other: _Cluster) -> bool:
        if self.attempts and other.attempts and not self.attempts & other.attempts:
            return False
        return bool(self.identities & other.identities)

    def proofs(self, other: _Cluster) -> int:
        """How much proves that both are of one job: processes, and lines of a console."""
        pids = sum(other.pids.get(rank) == pid for rank, pid in self.pids.items())
        pids += len(self.named_pids & set(other.pids.values()))
        pids += len(other.named_pids & set(self.pids.values()))
        return (
            pids
            + _shared(self.console_lines, other.log_lines)
            + _shared(self.log_lines, other.console_lines)
        )

    def contradicts(self, other: _Cluster) -> bool:
        """Whether the two cannot be of one job."""
        if self.attempts and other.attempts and self.attempts != other.attempts:
            return True
        mine, others = _by_kind(self.identities), _by_kind(other.identities)
        if any(not mine[kind] & others[kind] for kind in mine.keys() & others.keys()):
            return True
        if self.sizes and other.sizes and not self.sizes & other.sizes:
            return True
        for cluster, sized in ((self, other), (other, self)):
            highest = max((rank for _, _, rank in cluster.sources), default=-1)
            if sized.sizes and highest >= max(sized.sizes):
                return True
        if any(other.pids.get(rank, pid) != pid for rank, pid in self.pids.items()):
            return True
        folders: dict[tuple[str, int], set[str]] = defaultdict(set)
        for folder, what, rank in self.sources:
            folders[what, rank].add(folder)
        for folder, what, rank in other.sources:
            # Two dumps of a rank in one folder are of two moments.
            if folders.get((what, rank), {folder}) != {folder}:
                return True
        for console, log in (
            (self.console_lines, other.log_lines),
            (other.console_lines, self.log_lines),
        ):
            if console.keys() & log.keys() and not _shared(console, log):
                return True
        return self.distance_ns(other) > _DAY_NS

    def distance_ns(self, other: _Cluster) -> int:
        """Time between them; 0 if they overlap or have no times."""
        if self.first_ns is None or other.first_ns is None:
            return 0
        assert self.last_ns is not None and other.last_ns is not None
        return max(0, self.first_ns - other.last_ns, other.first_ns - self.last_ns)


def _shared(console: dict[int, set[str]], log: dict[int, set[str]]) -> int:
    return sum(len(texts & log.get(rank, set())) for rank, texts in console.items())


def jobs_of(files: Sequence[FileEvidence]) -> list[JobEvidence]:
    """The jobs that the files are of, those of most files first."""
    clusters: dict[str, list[_Cluster]] = defaultdict(list)
    for cluster in _joined_by_identity([_Cluster.of(file) for file in files]):
        clusters[_common_folder(cluster)].append(cluster)
    # From the deepest folder upwards.
    depths = sorted({folder.count(os.sep) + bool(folder) for folder in clusters}, reverse=True)
    for depth in range(depths[0] if depths else 0, -1, -1):
        for folder in [f for f in clusters if f.count(os.sep) + bool(f) == depth]:
            joined = _joined_in_folder(clusters.pop(folder))
            if depth:
                clusters[os.path.dirname(folder)] += joined
            else:
                clusters[folder] = joined
    jobs = [_merged(cluster) for cluster in clusters[""]]
    return sorted(jobs, key=lambda job: (-len(job.files), job.name))


def _joined_by_identity(clusters: Iterable[_Cluster]) -> list[_Cluster]:
    joined: list[_Cluster] = []
    for cluster in clusters:
        same = [other for other in joined if cluster.shares_identity(other)]
        for other in same:
            cluster.add(other)
        joined = [other for other in joined if other not in same] + [cluster]
    return joined


def _joined_in_folder(clusters: list[_Cluster]) -> list[_Cluster]:
    """Join what can be of one job. A cluster that could be of several jobs joins the one for which
    most proofs speak, or else the one nearest in time, and stays alone if none is.
    """
    joined: list[_Cluster] = []
    order = sorted(
        clusters, key=lambda c: (c.is_general, -len(_by_kind(c.identities)), -len(c.files))
    )
    for cluster in order:
        possible = [other for other in joined if not other.contradicts(cluster)]
        proofs = {id(other): other.proofs(cluster) for other in possible}
        if most := max(proofs.values(), default=0):
            possible = [other for other in possible if proofs[id(other)] == most]
        if len(possible) > 1 and cluster.first_ns is not None and not cluster.is_general:
            nearest = min(other.distance_ns(cluster) for other in possible)
            possible = [other for other in possible if other.distance_ns(cluster) == nearest]
        if len(possible) == 1:
            possible[0].add(cluster)
        else:
            joined.append(cluster)
    return joined


def _merged(cluster: _Cluster) -> JobEvidence:
    job = JobEvidence(identities=cluster.identities)
    job.first_ns, job.last_ns = cluster.first_ns, cluster.last_ns
    job.ranks = max(cluster.sizes, default=None)
    variants: _Variants = defaultdict(list)
    # Files that know the members of a group come first: they tell groups of one name apart.
    files = sorted(cluster.files, key=lambda file: file.shown)
    files.sort(key=lambda file: not any(g.ranks for g in file.evidence.groups.values()))
    for file in files:
        evidence = file.evidence
        names = _group_names(evidence, variants)
        for rank, node in evidence.nodes.items():
            job.nodes.setdefault(rank, node)
        for rank, pid in evidence.pids.items():
            job.pids.setdefault(rank, pid)
        for rank, when_ns in evidence.alive_ns.items():
            job.alive_ns[rank] = max(when_ns, job.alive_ns.get(rank, 0))
        for old, group in evidence.groups.items():
            new = names.get(old, old)
            earlier = job.groups.get(new)
            if earlier is None or (group.ranks and not earlier.ranks):
                job.groups[new] = group
        if any(old != new for old, new in names.items()):
            calls = [replace(c, group=names.get(c.group, c.group)) for c in evidence.calls]
            events = [
                event if event.group is None else replace(event, group=names.get(event.group))
                for event in evidence.events
            ]
        else:
            calls, events = evidence.calls, evidence.events
        job.calls += calls
        job.events += events
        for numbers, of_file in (
            (job.last_number, evidence.last_number),
            (job.last_completed, evidence.last_completed),
        ):
            for (rank, old), number in of_file.items():
                key = (rank, names.get(old, old))
                numbers[key] = max(number, numbers.get(key, 0))
        job.files += evidence.files
        job.texts.add(evidence.texts)
    # A log quotes more of an error than a record of calls does: the call, and the line of code.
    logs = {seen.path for seen in job.files if seen.what in LOGS}
    job.events.sort(key=lambda event: event.place.path not in logs)
    job.name = _name(cluster)
    return job


# Name -> the different groups that have it.
_Variants = dict[str, list[GroupSeen]]


def _group_names(evidence: JobEvidence, variants: _Variants) -> dict[str, str]:
    """Name in the file -> key in the job. The second group of a name becomes ``NAME@2``.

    torch gives parallel sub-groups that split_group makes the same name, and reuses the name of a
    destroyed group.
    """
    ranks = {rank for file in evidence.files for rank in file.ranks}
    groups = dict(evidence.groups)
    mentioned = [call.group for call in evidence.calls]
    mentioned += [event.group for event in evidence.events if event.group is not None]
    mentioned += [group for _, group in evidence.last_number]
    for name in mentioned:
        groups.setdefault(name, GroupSeen(name))
    names = {}
    for name, group in groups.items():
        group_variants = variants[name]
        fits = [
            index
            for index, other in enumerate(group_variants)
            if not other.ranks
            or (group.ranks == other.ranks if group.ranks else ranks & set(other.ranks))
        ]
        if not fits and (group.ranks or not group_variants):
            fits = [len(group_variants)]
            group_variants.append(group)
        names[name] = f"{name}@{fits[0] + 1}" if fits and fits[0] else name
    return names


def _name(cluster: _Cluster) -> str:
    """What the job is called: its identity, or the folder that its files have in common."""
    names = sorted(i for i in cluster.identities if i.split(" ")[0] not in _SEVERAL_IN_ONE_JOB)
    attempt = f" {min(cluster.attempts)}".replace("_", " ") if cluster.attempts else ""
    return (names[0] if names else _common_folder(cluster)) + attempt


def _common_folder(cluster: _Cluster) -> str:
    folders = [os.path.dirname(file.shown) for file in cluster.files]
    return common_folder(folders) if all(folders) else ""


def _by_kind(identities: Iterable[str]) -> dict[str, set[str]]:
    kinds: dict[str, set[str]] = defaultdict(set)
    for identity in identities:
        kind = identity.split(" ")[0]
        if kind not in _SEVERAL_IN_ONE_JOB:
            kinds[kind].add(identity)
    return kinds
