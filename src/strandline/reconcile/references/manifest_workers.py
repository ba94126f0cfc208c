"""Has workers read the manifest lists and manifests of many tables. `manifests.py` is what the workers do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from strandline.core.text.wording import plural
from strandline.reconcile.model import FileContent
from strandline.reconcile.paths import canonical
from strandline.reconcile.references.manifests import Listed, LivePart
from strandline.reconcile.storage.pool import Pool
from strandline.reconcile.storage.worker import ReadTask

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

FETCHED_AT_ONCE = 32
FETCH_THREADS = 8
_POSITION_DELETES = 1


@dataclass(frozen=True, slots=True)
class Unreadable:
    why: str
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class ListedManifest:
    path: str  # as the list spells it
    live: int | None  # number of live entries; None if the list does not say
    spec_id: int | None
    snapshot_id: int | None  # the snapshot that added it
    length: int | None = None  # size in bytes; None if the list does not say


@dataclass(slots=True)
class ManifestFiles:
    path: str
    data: list[str] = field(default_factory=list)  # keys of data files, in order
    others: dict[str, FileContent] = field(default_factory=dict)  # delete files and deletion vectors, by key
    problem: str | None = None
    is_missing: bool = False


@dataclass(frozen=True)
class ManifestReading:
    pool: Pool
    _: KW_ONLY
    timeout_seconds: float
    check: Callable[[], None] | None = None
    memory: str | None = None  # a folder: manifests that were read before are not parsed again (`manifest_cache.py`)
    on_found: Callable[[int], None] = lambda more: None

    def read_lists(self, owners: Mapping[str, FileIO]) -> dict[str, list[ListedManifest] | Unreadable]:
        """By path."""
        answers: dict[str, list[ListedManifest] | Unreadable] = {}
        parts: dict[str, list[Listed]] = {path: [] for path in owners}

        def on_part(path: str, part: list[Listed]) -> None:
            parts[path] += part

        def on_end(path: str, how: str, why: str | None) -> None:
            answers[path] = [_listed(m) for m in parts[path]] if how == "end" else _unreadable(how, why)

        self._run("manifest_list", owners, on_part, on_end)
        return answers

    def read_manifests(
        self, wanted: Iterable[ListedManifest], owners: Mapping[str, FileIO]
    ) -> dict[str, ManifestFiles]:
        """By path. Compares counts of entries and bytes with the list: files of lost entries would be unprotected."""
        wanted = list(wanted)
        expected = {manifest.path: manifest.live for manifest in wanted}
        lengths = {manifest.path: manifest.length for manifest in wanted if manifest.length is not None}
        found = {path: ManifestFiles(path) for path in expected}
        counts = dict.fromkeys(expected, 0)

        def on_part(path: str, part: LivePart) -> None:
            count, data, others = part
            counts[path] += count
            self.on_found(count)
            found[path].data += data
            for content, form, file in others:
                found[path].others[file] = _content(content, form)

        def on_end(path: str, how: str, why: str | None) -> None:
            if how != "end":
                unreadable = _unreadable(how, why)
                found[path] = ManifestFiles(path, problem=unreadable.why, is_missing=unreadable.is_missing)
            elif expected[path] is not None and expected[path] != counts[path]:
                said = f"it has {plural(counts[path], 'live entry')}, and its list says {expected[path]:,}"
                found[path] = ManifestFiles(path, problem=said)

        self._run("manifest", {path: owners[path] for path in expected}, on_part, on_end, lengths)
        return found

    def _run(
        self,
        doing: str,
        owners: Mapping[str, FileIO],
        on_part: Callable[[str, Any], None],
        on_end: Callable[[str, str, str | None], None],
        lengths: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        spelled: dict[str, str] = {}

        def ended(task: ReadTask, how: str, why: str | None) -> tuple[()]:
            on_end(spelled[task[0]], how, why)
            return ()

        def run(tasks: Sequence[ReadTask]) -> None:
            self.pool.run(
                doing,
                tasks,
                lambda task, part: on_part(spelled[task[0]], part),
                ended,
                timeout_seconds=self.timeout_seconds,
                at_once_max=4,
                check=self.check,
            )

        local: list[str] = []
        remote: list[str] = []
        for path in sorted(owners):
            name = canonical(path)
            # Two spellings of one local file are two tasks with different names.
            spelled[name if name not in spelled else path] = path
            (local if name.startswith("/") else remote).append(path)
        by_task = {path: task for task, path in spelled.items()}
        run([(by_task[path], None, lengths.get(path), self.memory) for path in local])
        with ThreadPoolExecutor(FETCH_THREADS, thread_name_prefix="fetch") as threads:
            for at in range(0, len(remote), FETCHED_AT_ONCE):
                wave = remote[at : at + FETCHED_AT_ONCE]
                fetched = list(threads.map(lambda path: _fetch(owners[path], path), wave))
                tasks = []
                for path, content in zip(wave, fetched, strict=True):
                    if isinstance(content, bytes):
                        tasks.append((by_task[path], content, lengths.get(path), self.memory))
                    else:
                        on_end(path, "missing" if content.is_missing else "failed", content.why)
                run(tasks)


def _fetch(io: FileIO, path: str) -> bytes | Unreadable:
    try:
        with io.new_input(path).open() as file:
            return file.read()
    except FileNotFoundError:
        return Unreadable("it does not exist", is_missing=True)
    except Exception as e:
        # Stores and their clients have no common error class; every failure is reported.
        return Unreadable(f"{type(e).__name__}: {str(e)[:200]}")


def _listed(found: Listed) -> ListedManifest:
    path, spec, snapshot, added, existing, length = found
    live = None if added is None or existing is None else added + existing
    return ListedManifest(path, live, spec, snapshot, length)


def _unreadable(how: str, why: str | None) -> Unreadable:
    return Unreadable("it does not exist", is_missing=True) if how == "missing" else Unreadable(why or how)


def _content(content: int, form: str) -> FileContent:
    if content != _POSITION_DELETES:
        return FileContent.EQUALITY_DELETES
    return FileContent.DELETION_VECTOR if form == "PUFFIN" else FileContent.POSITION_DELETES
