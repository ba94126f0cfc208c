"""consumer list, show, remove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.command import Call, command
from strandline.cli.render import consumers as render_consumers
from strandline.cli.render.elements import done
from strandline.core.documents import fields_of
from strandline.core.errors import NoSuchConsumer, UsageError
from strandline.core.text.wording import plural
from strandline.iceberg.metadata.identifier import full_name
from strandline.status.documents import change_documents

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.status.consumers import ConsumerStatus

app = typer.Typer(name="consumer", help="See and remove readers that have a name, for which retention keeps rows.")

ConsumerArgument = Annotated[str, typer.Argument(metavar="NAME", help="The consumer's name.")]
ConsumerDatasetOption = typer.Option(None, "--dataset", metavar="NAME", help="Its dataset, if it reads several.")


@command(app, "list")
def list_(call: Call) -> None:
    """All consumers, and how far each of them is. Starts no JVM."""
    found = _load(call.lake)
    call.show({"consumers": [fields_of(c) for c in found]}, render_consumers.consumer_list(found))


@command(app)
def show(call: Call, name: ConsumerArgument, dataset: str | None = ConsumerDatasetOption) -> None:
    """One consumer, in each dataset that it reads. Starts no JVM."""
    found = _found(call, name, dataset)
    call.show({"consumers": [fields_of(c) for c in found]}, render_consumers.consumer_list(found))


@command(app, asks=True)
def remove(call: Call, name: ConsumerArgument, dataset: str | None = ConsumerDatasetOption) -> None:
    """Remove a consumer: retention no longer keeps rows for it.

    A query that still reads under its name stops with an error. If it starts again, the lake adds the consumer again.
    """
    found = _found(call, name, dataset)
    if len(found) > 1:
        raise UsageError(
            f"consumer {name} reads {plural(len(found), 'dataset')}", hint=f"--dataset chooses one: {_datasets(found)}."
        )
    [one] = found
    call.confirm(
        f"Remove consumer {name} of {one.dataset}? Retention no longer keeps rows for it.", refusal=f"{name} stays"
    )
    call.lake.consumers.remove(call.lake.dataset(one.dataset), name)
    document = change_documents.removed_consumer(one, dry_run=False)
    call.show(document, done(f"Consumer {name} of {one.dataset} is removed"))


def _load(lake: Lake) -> Sequence[ConsumerStatus]:
    from strandline.status.consumers import load_consumers  # which imports SQLAlchemy

    return load_consumers(lake.ledger)


def _found(call: Call, name: str, dataset: str | None) -> list[ConsumerStatus]:
    known = [c for c in _load(call.lake) if c.name == name]
    if not known:
        others = ", ".join(sorted({c.name for c in _load(call.lake)})) or "none yet"
        raise NoSuchConsumer(f"there is no consumer {name}", hint=f"Consumers: {others}.")
    found = [c for c in known if dataset is None or c.dataset == full_name(dataset)]
    if not found:
        raise NoSuchConsumer(f"consumer {name} does not read {dataset}", hint=f"It reads {_datasets(known)}.")
    return found


def _datasets(found: list[ConsumerStatus]) -> str:
    return ", ".join(c.dataset for c in found)
