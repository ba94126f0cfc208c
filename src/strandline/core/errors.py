"""Every error that Strandline raises on purpose.

StrandlineError
├── UsageError            the request itself is wrong                     exit 2
│   ├── ConfigError       settings that do not parse or contradict
│   ├── TokenError        a continuation token that cannot be used
│   ├── SchemaError       a schema, or a change of one, that is not possible
│   ├── NoSuchDataset
│   ├── NoSuchSink
│   ├── NoSuchFollower
│   ├── NoSuchConsumer
│   └── NoSuchRun
├── RefusedError          a guard refused the request                                 exit 3
│   ├── BatchConflict     a batch id that was used for other rows
│   ├── BatchEnded        a batch of received rows that other batches have replaced
│   ├── InputRefused      rows that do not fit the schema, with --strict
│   ├── ReceiverHolds     the receiver of a dataset is on hold until a person, or a later resync, releases it
│   ├── BadRow            the first row of a body that does not fit the schema
│   ├── LedgerMissing     there is no ledger at the configured place
│   ├── LedgerUnreadable  damaged, truncated, or not a ledger
│   ├── LedgerTooNew      made by a newer program
│   ├── LedgerMoved       a migration moves the lake to another ledger, or has done so
│   ├── WrongLake         ledger and warehouse belong to different lakes
│   ├── NotLeader         a write at a site that follows another one
│   ├── LeaseOver         a leader that has not reached the arbiter for too long
│   ├── WitnessUnreadable no sequence number can be reserved without it
│   ├── Superseded        another ledger has taken this lake over
│   ├── TermPassed        a request for another term than the site's
│   ├── TableRolledBack   the table's main branch lacks rows that were published
│   ├── TableUnfit        the table lacks something that Strandline needs
│   ├── UnsafeCatalog     JDBC over a network database
│   ├── SweepRunning      another run of the reconciler is under way
│   ├── DestinationTaken  another sink, dataset or lake delivers to the destination
│   ├── SinkStopped       a sink is in a state that a person has to resolve
│   ├── WatermarkUnreadable a sink's watermark is unreadable or contradicts itself
│   ├── AlreadyRunning    the same maintenance of the same dataset, or the same task, is under way
│   ├── TooManyTasks      this process has reached its limit of tasks
│   └── Skipped           maintenance that is not safe now; the next run may succeed
│       └── CalledOff     the work was called off before it was done
└── FailedError           the request was valid, and failed                   exit 1
    ├── RuntimeMissing    Java or the Iceberg jars are missing or have an unfit version
    ├── InputError        a file that cannot be read as what it claims to be
    ├── StampMismatch     the rows changed between counting and writing
    ├── BlockLost         the ledger no longer has the block, or another process owns it
    ├── BlockHeld         nobody knows whether the block was published; a person decides
    ├── CommitUnknown     the outcome could not be read back yet
    ├── StorageError      the warehouse or the ledger cannot be read or written
    │   └── LedgerRefused the ledger's database refused a statement: nothing was written
    ├── SegmentDamaged    rows from a leader that arrived changed or incomplete
    ├── DuplicateNumbers  two rows have the same sequence number
    ├── LeaseLost         another deliverer took the sink over, or another run the reconciler
    ├── TaskDied          the process of a task has stopped renewing its lease
    ├── ReferencesTooMany more references than one process may hold in memory
    ├── WatermarkMoved    another process changed the ledger during a delivery
    ├── LedgerBusy        another process has locked the ledger
    └── ResyncNeeded      witness and counter differ: the ledger must be resynced
"""

from __future__ import annotations

from strandline.core.text.masking import masked


class StrandlineError(Exception):
    """What happened, what to do next (`hint`), and whether a retry helps. Known secrets are masked, because the
    message may quote a server."""

    exit_code = 1
    retryable = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = masked(message)
        self.hint = None if hint is None else masked(hint)
        super().__init__(self.message)


class UsageError(StrandlineError):
    exit_code = 2


class ConfigError(UsageError): ...
class TokenError(UsageError): ...
class SchemaError(UsageError): ...
class NoSuchDataset(UsageError): ...
class NoSuchSink(UsageError): ...
class NoSuchFollower(UsageError): ...
class NoSuchConsumer(UsageError): ...
class NoSuchRun(UsageError): ...


class RefusedError(StrandlineError):
    exit_code = 3


class BatchConflict(RefusedError): ...
class BatchEnded(RefusedError): ...
class InputRefused(RefusedError): ...
class ReceiverHolds(RefusedError): ...


class BadRow(RefusedError):
    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line  # from 1; None if the error is not about one line


class LedgerMissing(RefusedError): ...
class LedgerUnreadable(RefusedError): ...
class LedgerTooNew(RefusedError): ...
class LedgerMoved(RefusedError): ...
class WrongLake(RefusedError): ...
class NotLeader(RefusedError): ...


class LeaseOver(RefusedError):
    retryable = True


class WitnessUnreadable(RefusedError): ...
class Superseded(RefusedError): ...
class TermPassed(RefusedError): ...
class TableRolledBack(RefusedError): ...
class TableUnfit(RefusedError): ...
class UnsafeCatalog(RefusedError): ...
class WatermarkUnreadable(RefusedError): ...


class SweepRunning(RefusedError):
    retryable = True


class AlreadyRunning(RefusedError):
    retryable = True


class TooManyTasks(RefusedError):
    retryable = True


class Skipped(RefusedError):
    retryable = True


class CalledOff(Skipped):
    """`by` is who asked for it; None if its process stops."""

    def __init__(self, message: str, *, hint: str | None = None, by: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.by = by


class FailedError(StrandlineError): ...
class RuntimeMissing(FailedError): ...
class InputError(FailedError): ...


class StampMismatch(FailedError):
    retryable = True


class BlockLost(FailedError):
    retryable = True


class BlockHeld(FailedError): ...


class CommitUnknown(FailedError):
    retryable = True


class StorageError(FailedError):
    retryable = True


class LedgerRefused(StorageError): ...


class SegmentDamaged(FailedError):
    retryable = True


class DuplicateNumbers(FailedError):
    REMEDY = (
        "Somebody copied rows together with their sequence numbers, or made up one that is ours. Delete the row that "
        "does not belong there; `strandline status` shows whether others are left."
    )


class WatermarkMoved(FailedError):
    retryable = True


class LedgerBusy(FailedError):
    retryable = True


class ResyncNeeded(FailedError):
    retryable = True


class DestinationTaken(RefusedError):
    """The message names the sink that delivers there. `sink` and `dataset` name it for callers that must not show the
    message to everybody; both are None if the sink is not of this lake."""

    def __init__(
        self, message: str, *, hint: str | None = None, sink: str | None = None, dataset: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.sink, self.dataset = sink, dataset


class SinkStopped(RefusedError): ...


class LeaseLost(FailedError):
    retryable = True


class TaskDied(FailedError):
    retryable = True


class ReferencesTooMany(FailedError): ...


def unexpected_message(error: BaseException) -> str:
    """The message for an error outside of the tree: its type, and the first line of its own message."""
    text = str(error).strip()
    return f"unexpected {type(error).__name__}: {text.splitlines()[0][:500] if text else 'no message'}"


def as_strandline_error(error: Exception) -> StrandlineError:
    return error if isinstance(error, StrandlineError) else FailedError(unexpected_message(error))
