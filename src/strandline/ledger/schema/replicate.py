"""The ledger's tables of replication, in the metadata of `core.py`.

A site has a role and a term. At a leader: its followers, the seal of each of them per dataset, and up to where it has
applied each shard. At a follower: up to where it has recorded the leader's items of each dataset. The items themselves
are blocks (`core.py`) that are `offered`. Triggers (made by the migrations) refuse to move a term, a bound, a
seal or a mark back."""

from __future__ import annotations

from strandline.ledger.schema.core import flags, integers, table, texts, times, words

site = table(
    "site",
    integers("id", "term"),
    texts("role"),
    texts("leader"),  # a URL, or the path of the leader's settings file
    texts("leader_token"),  # where the token is found, such as `env:NAME`; never the token itself
    integers("number"),  # of a site that a leader has given one; NULL: a leader's is that of its term
    texts("instance"),  # of a site that follows, or has followed: made with its ledger
    integers("superseded_term"),  # another site leads in this higher term: this leader accepts no more rows
    texts("superseded_by"),
    integers("promoting_term"),  # the term that a promotion replaces; NULL: none is under way
    integers("claimed_term"),  # the term that the arbiter has given to that promotion
    times("changed_at"),
)

followed_dataset = table(
    "followed_dataset",
    integers("dataset_id"),
    integers("bound"),  # every item of the leader up to here is recorded
    # The witness's number when the ledger was found to be behind it: nothing is sealed until everything up to this
    # number is applied. NULL: the ledger is not behind.
    integers("witnessed"),
    integers("term"),  # of the leader whose items these are
    integers("leader_seal"),  # as last reported; NULL: the leader has sealed nothing, or has not reported it
    times("offered_at"),  # NULL: the leader does not offer the dataset
)

# How the last passes of a follower went: one row, absent before the first.
leader_contact = table(
    "leader_contact",
    integers("id"),
    times("answered_at"),  # when the leader last answered, within some seconds
    times("failing_since"),  # NULL: the last pass did not fail
    texts("failed_step"),
    words("error", "hint"),
)

follower = table(
    "follower",
    integers("id", "token_id", "drop_after_seconds", "term"),
    texts("name", "on_lag"),
    texts("datasets"),  # a JSON list of dataset ids; NULL: all, also those made later
    integers("site_number"),  # NULL: it may follow, and cannot be promoted
    texts("instance"),  # of the site, as it first reported it; NULL: it has not reported yet
    flags("waited_for"),
    flags("member"),  # the arbiter's record names it: it may be promoted
    flags("leaving"),  # a person is removing it: it cannot become a member again
    times("added_at", "told_at", "removed_at"),
)

follower_seal = table(
    "follower_seal",
    integers("follower_id", "dataset_id", "seal", "term"),  # a seal of 0: the follower has none yet
    integers("dropped_upto"),  # a rule has deleted rows up to here that the follower did not have
    times("told_at"),
    times("held_since"),  # since when retention waits for this follower; NULL: it does not
)

follower_mark = table("follower_mark", integers("follower_id", "dataset_id", "shard", "mark", "term"), times("told_at"))

# Folders of rows, or of bodies, that this site acknowledged and the leader of a later term lacks.
set_aside = table(
    "set_aside",
    integers("id", "dataset_id", "row_count", "files"),
    integers("number"),  # of the cut; NULL: bodies of a receiver
    texts("place"),
    times("at"),
)

# At a follower: the definitions of its leader's sinks.
leader_sinks = table("leader_sinks", integers("id"), texts("document"), times("told_at"))

# The same sinks, as retention at the follower reads them.
leader_sink = table(
    "leader_sink",
    texts("dataset"),  # its id: this site may not have the dataset yet
    texts("name"),
    integers("lowest"),  # the sink has every row up to here; NULL: it may need the very first one
    flags("paused"),
    times("held_since"),  # since when retention keeps due rows for it; NULL: it does not
    integers("held_rows", "held_upto"),
)
