"""A lane is found by the hash of its partition: PostgreSQL indexes no text longer than about 2,700 bytes.

Written out, not taken from `schema.py`: a migration must do tomorrow what it does today.
"""

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_LANE_NAME = ["sink_id", "generation", "partition_hash"]
_SENDERS_LANE_NAME = ["dataset_id", "lake", "source_dataset", "instance", "generation", "partition_hash"]

_ROWS_AT_ONCE = 10_000


def upgrade() -> None:
    for table, index, columns in (
        ("lane", "one_lane_of_a_partition", _LANE_NAME),
        ("source_lane", "one_lane_of_a_sender", _SENDERS_LANE_NAME),
    ):
        # The default is for rows that are there; the trigger below refuses a row that is made with it.
        op.add_column(table, sa.Column("partition_hash", sa.Text, nullable=False, server_default=""))
        _fill(table)
        op.drop_index(index, table)
        op.create_index(index, table, columns, unique=True)
        _trigger(table, "INSERT", f"a_{table}_has_its_hash", "length(NEW.partition_hash) <> 64")
        _trigger(table, "UPDATE", f"a_{table}_keeps_its_hash", "NEW.partition_hash <> OLD.partition_hash")
    op.drop_index("losses_of_a_sink", "loss")
    op.create_index("losses_of_a_sink", "loss", ["sink_id", "generation", "until"])


def _fill(table: str) -> None:
    """The triggers that refuse a change are away meanwhile; nobody else sees this before it is committed."""
    connection = op.get_bind()
    sqlite = op.get_context().dialect.name == "sqlite"
    if sqlite:
        found = connection.exec_driver_sql(
            f"SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = '{table}'"
        ).all()
        for name, _ in found:
            op.execute(f"DROP TRIGGER {name}")
    else:
        found = []
        op.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    update = sa.text(f"UPDATE {table} SET partition_hash = :hash WHERE id = :id")
    after = 0
    while rows := connection.execute(
        sa.text(f"SELECT id, partition FROM {table} WHERE id > :after ORDER BY id LIMIT {_ROWS_AT_ONCE}"),
        {"after": after},
    ).all():
        connection.execute(
            update, [{"id": id, "hash": hashlib.sha256(partition.encode()).hexdigest()} for id, partition in rows]
        )
        after = rows[-1][0]
    for _, sql in found:
        connection.exec_driver_sql(sql)
    if not sqlite:
        op.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def _trigger(table: str, move: str, name: str, condition: str) -> None:
    if op.get_context().dialect.name == "sqlite":
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {move} ON {table} WHEN {condition} BEGIN SELECT RAISE(ABORT, '{name}'); END"
        )
    else:
        op.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF {condition} THEN RAISE EXCEPTION '{name}' USING ERRCODE = 'check_violation'; END IF; RETURN NEW; "
            f"END $$"
        )
        op.execute(f"CREATE TRIGGER {name} BEFORE {move} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")
