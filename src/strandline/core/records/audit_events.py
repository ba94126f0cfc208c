"""The names of all events in the audit log. The part before the dot says which stage or thing the event belongs to."""

from __future__ import annotations

from enum import StrEnum

from strandline.core.errors import UsageError


class Event(StrEnum):
    LEDGER_REBUILT = "ledger.rebuilt"
    LEDGER_RESYNCED = "ledger.resynced"
    WITNESS_REPLACED = "ledger.witness_replaced"

    DATASET_ADOPTED = "dataset.adopted"
    DATASET_ALTERED = "dataset.altered"
    DATASET_CREATED = "dataset.created"
    DATASET_DROPPED = "dataset.dropped"
    DATASET_REPLACED = "dataset.replaced"
    DATASET_RESYNCED = "dataset.resynced"
    ROLLBACK_NOT_KNOWN = "dataset.rollback_not_known"
    TABLE_ACCEPTED = "dataset.table_accepted"

    CUT_CARRIED_OUT = "follow.cut"  # another leader took over: blocks that it does not have are abandoned
    ROWS_SET_ASIDE = "follow.rows_set_aside"  # acknowledged here, and the leader lacks them: written to files
    FOLLOWER_BEHIND = "follow.behind"  # the follower's ledger was restored or created again
    FOLLOWER_CAUGHT_UP = "follow.caught_up"  # its ledger is complete again, and it has its seal back
    DATASET_LEFT = "follow.dataset_left"  # the leader that took over does not have it
    FOLLOWING_BEGUN = "follow.begun"
    PURGE_CARRIED_OVER = "follow.purged"
    REJOINED = "follow.rejoined"  # this site led, and follows the one that took over

    BLOCK_VOIDED = "ingest.block_voided"
    STRAY_BRANCH_REMOVED = "ingest.stray_branch_removed"

    SINK_ADDED = "sink.added"
    SINK_PAUSED = "sink.paused"
    SINK_RECOVERED = "sink.recovered"
    SINK_REMOVED = "sink.removed"
    SINK_RESET = "sink.reset"
    SINK_RESUMED = "sink.resumed"
    SINK_STOPPED = "sink.stopped"
    SINK_UPDATED = "sink.updated"
    ROWS_LOST = "sink.rows_lost"  # retention, a purge or the reconciler took rows that the sink will never get

    QUARANTINE_DISCARDED = "quarantine.discarded"
    QUARANTINE_REPLAYED = "quarantine.replayed"

    FOLLOWER_ADDED = "follower.added"
    FOLLOWER_BEGAN_ANEW = "follower.began_anew"  # its site was created again, and starts from the beginning
    FOLLOWER_REMOVED = "follower.removed"
    LEADER_SINK_ROWS_DROPPED = "follow.sink_rows_dropped"  # retention took rows that a sink of the leader did not have
    FOLLOWER_ROWS_DROPPED = "follower.rows_dropped"  # retention took rows that the follower did not have

    CONSUMER_ADDED = "consumer.added"
    CONSUMER_CHANGED = "consumer.changed"
    CONSUMER_REMOVED = "consumer.removed"
    CONSUMER_ROWS_DROPPED = "consumer.rows_dropped"  # retention or the reconciler took rows that it did not have

    TOKEN_CREATED = "token.created"
    TOKEN_REVOKED = "token.revoked"
    CLAIM_RELEASED = "token.claim_released"

    SESSION_ENDED = "session.ended"  # a person logged out of the dashboard
    SESSION_STARTED = "session.started"  # a person logged in to the dashboard

    PROMOTION_BEGUN = "follow.promotion_begun"
    PROMOTION_ENDED = "follow.promotion_ended"  # another site was promoted first: this one follows as before
    PROMOTION_FAILED = "follow.promotion_failed"  # with the reason; `promote` continues it
    SITE_PROMOTED = "follow.promoted"  # this site leads now; the event names what it gave up
    SITE_SUPERSEDED = "follow.superseded"  # another site leads in a higher term: this one accepts no more rows
    TERM_TAKEN = "follow.term_taken"

    RECEIVED_ACCEPTED = "receive.accepted"  # a person released a receiver that was on hold
    BODIES_DISCARDED = "receive.bodies_discarded"
    BODIES_FOUND = "receive.bodies_found"
    BODIES_REPLAYED = "receive.bodies_replayed"
    SPOOL_CLEARED = "receive.spool_cleared"
    SPOOL_FILES_LEFT = "receive.spool_files_left"
    SPOOL_FILES_SET_ASIDE = "receive.spool_files_set_aside"

    CLOCK_JUMPED = "maintain.clock_jumped"
    COMPACTED = "maintain.compacted"
    EXPIRED = "maintain.expired"
    PURGED = "maintain.purged"  # recorded before the rows are deleted
    PURGE_SETTLED = "maintain.purge_settled"  # the purge has also covered the sinks that were added during it
    RETAINED = "maintain.retained"
    RETENTION_HELD = "maintain.retention_held"
    RETENTION_RELEASED = "maintain.retention_released"
    RUN_SKIPPED = "maintain.run_skipped"
    MAINTENANCE_CALLED_OFF = "maintain.run_called_off"  # by a person; the run ends before its next durable step

    CAP_HIT = "reconcile.cap_hit"
    ENTRIES_DROPPED = "reconcile.entries_dropped"
    FILES_DELETED = "reconcile.files_deleted"
    FILES_PURGED = "reconcile.files_purged"
    FILES_QUARANTINED = "reconcile.files_quarantined"
    FILES_RESTORED = "reconcile.files_restored"
    FILE_RELEASED = "reconcile.file_released"  # a person decided that a suspect file is an orphan file
    RUN_ABORTED = "reconcile.run_aborted"
    RUN_CALLED_OFF = "reconcile.run_called_off"  # by a person; the run ends before its next batch
    RUN_COMPLETED = "reconcile.run_completed"
    RUN_SETTLED = "reconcile.run_settled"  # the unfinished actions of a dead run were checked and recorded
    RUN_STARTED = "reconcile.run_started"

    TASK_CALLED_OFF = "task.called_off"  # by a person; the task ends before its next durable step

    SETTING_APPLIED = "apply.setting_changed"  # a retention rule or a schedule

    SCHEDULE_FOLLOWED = "schedule.followed"  # a daemon began to follow these schedules


def events_named(prefix: str) -> list[Event]:
    """The events whose names begin with the prefix; `UsageError` if there is none."""
    found = [event for event in Event if event.startswith(prefix)]
    if not found:
        stages = ", ".join(sorted({event.partition(".")[0] for event in Event}))
        raise UsageError(f"no event's name begins with `{prefix}`", hint=f"Names begin with one of: {stages}.")
    return found
