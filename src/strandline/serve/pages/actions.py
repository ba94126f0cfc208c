"""The buttons of an admin: one for everything that the API can change. Each is a form that calls the API.

A button says what it will do. What cannot be undone has to be confirmed, after the dry run if the API has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

_API = "/api/v1"
_CHOICES_MAX = 60


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    kind: str = "text"
    """How the script turns what was typed into JSON: text, flag, choice, number, list (by commas), pairs (key=value
    lines), renames (old=new lines), columns (name type lines), numbers (row numbers; none: all)."""
    value: str = ""
    choices: Sequence[str] = ()
    hint: str = ""
    required: bool = False
    unchosen: str = "as the rule says"  # how the empty choice is shown


@dataclass(frozen=True, slots=True)
class PageAction:
    id: str
    label: str
    method: str
    path: str
    says: str  # what it will do, and whether that can be undone
    fields: Sequence[Field] = ()
    body: Mapping[str, Any] = field(default_factory=dict)  # sent always
    dry_path: str | None = None  # where its dry run is; None if it has none
    dry_body: Mapping[str, Any] = field(default_factory=dict)
    cannot_be_undone: bool = False
    confirm: str | None = None  # what has to be typed before
    only_if: Sequence[str] = ()  # fields; it can be undone, and needs neither, unless one of them is given
    rows_of: str | None = None  # a sink: rows that are chosen on the page go into the field `numbers`
    sends_body: bool = True

    @property
    def route(self) -> str:
        return f"{self.method} {self.path.partition('?')[0]}"


def _sink(name: str) -> str:
    return f"{_API}/sinks/{quote(name, safe='')}"


def pause(name: str) -> PageAction:
    return PageAction(
        "pause", "Pause", "POST", f"{_sink(name)}/pause",
        f"{name} gets no more rows until it is resumed. What it has stays; rows wait in the lake.", sends_body=False,
    )  # fmt: skip


def resume(name: str) -> PageAction:
    return PageAction(
        "resume", "Resume", "POST", f"{_sink(name)}/resume",
        f"{name} continues where it stopped. Rows that waited are delivered.", sends_body=False,
    )  # fmt: skip


def sink_actions(name: str, state: str) -> list[PageAction]:
    tick, *others = _sink_work(name)
    return [tick, pause(name), *others] if state == "active" else [resume(name), tick, *others]


def _sink_work(name: str) -> list[PageAction]:
    at = _sink(name)
    return [
        PageAction(
            "tick", "Deliver now", "POST", f"{at}/tick",
            f"Every settled row that {name} does not have yet is sent to it, once. A dry run says what would be sent.",
            body={"dry_run": False}, dry_path=f"{at}/tick", dry_body={"dry_run": True},
        ),
        PageAction(
            "verify", "Verify", "POST", f"{at}/verify",
            f"Reads everything that {name} holds and compares it with the lake. Changes nothing; may take long.",
            [Field("taken_is_fine", "Objects that a consumer took away are no loss", "flag")],
        ),
        PageAction(
            "update", "Change options", "PATCH", at,
            "What was promised already is delivered with the old options; nothing is sent again.",
            [
                Field("options", "Options", "pairs", hint="One per line: name=value. A secret is named as env:NAME."),
                Field("unset", "Back to the default", "list", hint="Names, with commas between them."),
            ],
        ),
        PageAction(
            "recover", "Recover", "POST", f"{at}/recover",
            f"Reads from the destination how far {name} is, and continues from there. If the destination lacks what it "
            "had, nothing is changed unless you say below what to do about it.",
            [
                Field("resend", "Send again what the destination has lost, in a new generation", "flag"),
                Field("accept_loss", "Give up what the destination has lost; this cannot be undone", "flag"),
            ],
            body={"dry_run": False}, dry_path=f"{at}/recover", dry_body={"dry_run": True},
            cannot_be_undone=True, confirm=name, only_if=("resend", "accept_loss"),
        ),
        PageAction(
            "reset", "Deliver again", "POST", f"{at}/reset",
            f"{name} gets its rows again, in a new generation beside the old one. Whoever reads both gets rows twice. "
            "The old generation cannot be continued.",
            [Field("to", "From", value="beginning", hint="beginning, or a continuation token.", required=True)],
            body={"dry_run": False}, dry_path=f"{at}/reset", dry_body={"dry_run": True},
            cannot_be_undone=True, confirm=name,
        ),
        PageAction(
            "remove", "Remove", "DELETE", at,
            f"{name} gets no more rows: neither those that it lags behind nor those in its quarantine. What was "
            "delivered stays where it is. A sink that is added to the same place later continues where this one was; "
            "“Deliver again” starts over.",
            dry_path=f"{at}?dry_run=true", cannot_be_undone=True, confirm=name, sends_body=False,
        ),
    ]  # fmt: skip


def _dataset_field(datasets: Sequence[str]) -> Field:
    """A list to choose from, unless it were too long."""
    if len(datasets) > _CHOICES_MAX:
        return Field("dataset", "Dataset", hint="NAMESPACE.TABLE", required=True)
    return Field("dataset", "Dataset", "choice", "", datasets, required=True)


def add_sink(datasets: Sequence[str], kinds: Sequence[str]) -> PageAction:
    return PageAction(
        "add-sink", "Add a sink", "POST", f"{_API}/sinks",
        "Strandline inspects the destination and claims it; then the sink gets the dataset's rows, each exactly once.",
        [
            Field("name", "Name", required=True),
            _dataset_field(datasets),
            Field("kind", "Kind", "choice", "", kinds, required=True),
            Field("options", "Options", "pairs", hint="One per line: name=value. A secret is named as env:NAME."),
            Field("start", "Rows", "choice", "beginning", ("beginning", "now"), "All settled rows, or new ones only."),
        ],
    )  # fmt: skip


def add_follower(datasets: Sequence[str]) -> PageAction:
    return PageAction(
        "add-follower", "Add a follower", "POST", f"{_API}/replication/followers",
        "Lets a site follow this lake. The secret of its token is shown once, here. From now on retention keeps what "
        "the follower does not have, from the very first row, until it has caught up.",
        [
            Field("name", "Name", required=True),
            Field("datasets", "Only these datasets", "list", hint="With commas between them; empty: all."
                  + (f" For example: {datasets[0]}" if datasets else "")),
            Field("on_lag", "If it lags", "choice", "hold", ("hold", "drop"),
                  "Retention keeps due rows that it does not have (hold), or deletes them after a time (drop)."),
            Field("drop_after", "Drop after", hint="With drop: how long rows are kept for it: 30d."),
        ],
    )  # fmt: skip


def remove_follower(name: str) -> PageAction:
    at = f"{_API}/replication/followers/{quote(name, safe='')}"
    return PageAction(
        "remove-follower", "Remove", "DELETE", at,
        f"Retention keeps nothing for {name} any more, and its token is refused: it can fetch nothing more. What it "
        "has stays where it is. A follower that is added later begins with the first row.",
        dry_path=f"{at}?dry_run=true", cannot_be_undone=True, confirm=name, sends_body=False,
    )  # fmt: skip


def remove_consumer(dataset: str, name: str) -> PageAction:
    at = f"{_API}/datasets/{quote(dataset, safe='')}/consumers/{quote(name, safe='')}"
    return PageAction(
        f"remove-consumer-{quote(name, safe='')}", "Remove", "DELETE", at,
        f"Retention keeps nothing for {name} any more. A query that still reads under its name stops with an error. "
        "If it starts again, the lake adds the consumer again; rows that were deleted meanwhile are missing.",
        dry_path=f"{at}?dry_run=true", cannot_be_undone=True, confirm=name, sends_body=False,
    )  # fmt: skip


def create_dataset() -> PageAction:
    return PageAction(
        "create-dataset", "Create a dataset", "POST", f"{_API}/datasets",
        "Creates an Iceberg table, and makes it a dataset.",
        [
            Field("name", "Name", hint="TABLE or NAMESPACE.TABLE", required=True),
            Field("columns", "Columns", "columns", hint="One per line: name type, and required if it must be there. "
                  "For example: id long required", required=True),
            Field("deliver_by", "Deliver by", "list", hint="Columns whose values sort rows into logical partitions."),
            Field("partition_by", "Partition by", hint="How files are laid out: day(at)"),
            Field("shards", "Shards", "number", hint="Followers apply shards in parallel. Empty: 1."),
        ],
    )  # fmt: skip


def dataset_actions(name: str) -> list[PageAction]:
    at = f"{_API}/datasets/{quote(name, safe='')}"
    return [
        *maintenance_actions(name),
        PageAction(
            "alter", "Change columns", "PATCH", at,
            "All changes in one commit; no file is rewritten. Values of a dropped column stay in the files, unread.",
            [
                Field("add", "Add", "columns", hint="One per line: name type"),
                Field("rename", "Rename", "renames", hint="One per line: old=new"),
                Field("widen", "Widen", "columns", hint="One per line: name type (int to long, float to double)"),
                Field("drop", "Drop", "list", hint="Names, with commas between them. They cannot be brought back."),
            ],
            body={"dry_run": False}, dry_path=at, dry_body={"dry_run": True},
            cannot_be_undone=True, confirm=name, only_if=("drop",),
        ),
        PageAction(
            "drop", "Drop", "DELETE", at,
            f"Catalog and ledger forget {name}, and its sinks get nothing more. Its files stay where they are, and its "
            "sequence numbers stay taken.",
            dry_path=f"{at}?dry_run=true", cannot_be_undone=True, confirm=name, sends_body=False,
        ),
    ]  # fmt: skip


def maintenance_actions(name: str) -> list[PageAction]:
    def action(kind: str, label: str, says: str, fields: Sequence[Field] = (), **more: Any) -> PageAction:
        at = f"{_API}/maintenance/{kind}"
        body = {"dataset": name}
        return PageAction(
            kind, label, "POST", at, says, fields, body | {"dry_run": False},
            dry_path=at, dry_body=body | {"dry_run": True}, **more,
        )  # fmt: skip

    older = Field("older_than", "Older than", hint="A number and s, m, h or d: 30d. Empty: as the rule says.")
    return [
        action("compact", "Compact", "Rewrites small files as large ones. Rows and their numbers stay the same."),
        action(
            "retain", "Apply retention",
            "Deletes rows that are old enough, once every sink has them. Deleted rows cannot be brought back.",
            [
                older,
                Field("column", "By the time in the column"),
                Field("on_lag", "If a sink lags", "choice", "", ("", "hold", "drop"), "Empty: as the rule says."),
                Field("drop_after", "Drop after", hint="How long to hold rows for a sink that lags: 30d."),
                Field("paused_sinks", "Paused sinks", "choice", "", ("", "count", "ignore"),
                      "Whether rows are kept for paused sinks"),
                Field("accept_clock", "The clock of this machine is right", "flag"),
            ],
            cannot_be_undone=True,
        ),
        action(
            "expire", "Expire snapshots",
            "Removes old snapshots and the files that only they had. Time travel to them is not possible any more.",
            [older, Field("keep_min", "Keep at least", "number", hint="So many snapshots stay in any case.")],
            cannot_be_undone=True,
        ),
        action(
            "purge", "Purge rows",
            "Deletes rows wherever the lake has them, for a person who asks to be forgotten. Sinks keep what they got; "
            "the result names those that may hold such rows.",
            [
                Field("where", "Which rows", hint="In Spark SQL: who = 'ada'", required=True),
                Field("keep_snapshots", "Leave old snapshots, which still hold the rows", "flag"),
            ],
            cannot_be_undone=True, confirm=name,
        ),
    ]  # fmt: skip


def quarantined_row_actions(sink: str) -> list[PageAction]:
    at = f"{_API}/quarantined-rows"
    which = Field("numbers", "Rows", "numbers", hint="Their numbers, with commas between them. Empty: all of the sink.")
    return [
        PageAction(
            "replay", "Replay", "POST", f"{at}/replay",
            f"Sends the rows to {sink} again. One that is refused again stays in quarantine.",
            [which], {"sink": sink}, rows_of=sink,
        ),
        PageAction(
            "discard", "Discard", "POST", f"{at}/discard",
            f"{sink} never gets these rows, and their stored content is removed. The lake keeps its own rows.",
            [which], {"sink": sink, "dry_run": False}, dry_path=f"{at}/discard",
            dry_body={"sink": sink, "dry_run": True}, rows_of=sink, cannot_be_undone=True, confirm=sink,
        ),
    ]  # fmt: skip


def quarantined_file_actions() -> list[PageAction]:
    at = f"{_API}/quarantined-files"
    return [
        PageAction(
            "restore", "Restore", "POST", f"{at}/restore",
            "Brings back every file that a run has quarantined. Never replaces a file, and may be repeated.",
            [Field("run", "Run", "number", required=True)],
        ),
        PageAction(
            "purge-files", "Purge", "POST", f"{at}/purge",
            "Deletes for good the files that have been in quarantine long enough. What a table needs by now is brought "
            "back instead.",
            [Field("run", "Only of run", "number", hint="Empty: of every run.")],
            body={"dry_run": False}, dry_path=f"{at}/purge", dry_body={"dry_run": True},
            cannot_be_undone=True, confirm="purge",
        ),
    ]  # fmt: skip


def reconcile_actions() -> list[PageAction]:
    at = f"{_API}/reconciliation/trigger"
    return [
        PageAction(
            "dry-run", "Find drift", "POST", f"{at}?dry_run=true",
            "Compares tables with storage and reports what differs. Changes nothing.", sends_body=False,
        ),
        PageAction(
            "act", "Act on drift", "POST", f"{at}?dry_run=false&act=true",
            "Compares tables with storage, moves orphan files into quarantine and repairs what it may, within its "
            "guards. Files in quarantine can be restored until they are purged.",
            dry_path=f"{at}?dry_run=true", cannot_be_undone=True, sends_body=False,
        ),
    ]  # fmt: skip


def call_off(place: str, label: str = "Call off") -> PageAction:
    return PageAction(
        "cancel", label, "POST", f"{_API}/{place}/cancel",
        "It ends before its next durable step. What it has finished until then stays.", sends_body=False,
    )  # fmt: skip


def create_token(datasets: Sequence[str]) -> PageAction:
    return PageAction(
        "create-token", "Create a token", "POST", f"{_API}/tokens",
        "Creates a token. Its secret is shown once, here; the ledger stores only a hash.",
        [
            Field("name", "Name", required=True),
            Field("role", "Role", "choice", "", ("", "read", "write", "replicate", "admin"),
                  unchosen="that of the token it replaces, or write"),
            Field("datasets", "Only these datasets", "list",
                  hint="With commas between them; empty: those of the token it replaces, or all."
                  + (f" For example: {datasets[0]}" if datasets else "")),
            Field("expires", "Expires after", hint="A number and s, m, h or d: 30d. Empty: never."),
            Field("replaces", "Replaces", hint="The token that this one replaces."),
        ],
    )  # fmt: skip


def revoke_token(name: str) -> PageAction:
    return PageAction(
        f"revoke-{quote(name, safe='')}", "Revoke", "DELETE", f"{_API}/tokens/{quote(name, safe='')}",
        f"The token {name} is refused from now on, and its sessions end. What was sent with it stays. It cannot be "
        "made valid again.",
        cannot_be_undone=True, confirm=name, sends_body=False,
    )  # fmt: skip
