"""The difference between a declaration and a lake, over random ones of both."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import assume, given

from strandline.apply.declaration import DatasetSpec, Declaration, SinkSpec
from strandline.apply.plan import deletes_more, plan
from strandline.apply.read_toml import parse_declaration
from strandline.apply.steps import Permission, Plan, StepAction, Wish
from strandline.apply.write_toml import write_declaration
from strandline.cli.render import apply as render_apply
from strandline.core.errors import UsageError
from strandline.core.settings.maintain import RetainSettings
from strandline.core.types import History
from strandline.iceberg.schema.columns import Column, ListOf, Primitive, Struct
from strandline.status.documents import lake_documents
from tests.apply.declarations import declarations, found, rules, take

EVERYTHING = Wish(prune=True, allowed=frozenset(Permission))
LONG, INT, TEXT = Primitive("long"), Primitive("int"), Primitive("string")
EVENTS = DatasetSpec("default.events", (Column("id", LONG, required=True), Column("who", TEXT)))
ID = 'columns = [{ name = "id", type = "int" }]'
OUT = SinkSpec("out", "default.events", "files", {"path": "out"})


def lake(*specs: DatasetSpec | SinkSpec, **more: object) -> Declaration:
    return Declaration(
        {s.name: s for s in specs if isinstance(s, DatasetSpec)},
        {s.name: s for s in specs if isinstance(s, SinkSpec)},
        **more,  # type: ignore[arg-type]
    )


def planned(declared: Declaration, there: Declaration, *allowed: Permission, prune: bool = False) -> Plan:
    return plan(declared, found(there, declared), Wish(prune, frozenset(allowed)))


@given(declarations())
def test_what_is_written_is_read_as_the_same_declaration_and_the_text_is_stable(declared: Declaration) -> None:
    text = write_declaration(declared, ["a comment"])
    tomllib.loads(text)
    again = parse_declaration(text)
    assert again == declared
    assert write_declaration(again, ["a comment"]) == text
    backwards = Declaration(
        *(dict(reversed(m.items())) for m in (again.datasets, again.sinks, again.rules, again.schedules))
    )
    assert write_declaration(backwards, ["a comment"]) == text


@given(declarations())
def test_a_lake_that_is_as_declared_needs_nothing(declared: Declaration) -> None:
    for wish in (Wish(), EVERYTHING):
        there = plan(declared, found(declared, declared), wish)
        assert there.steps == there.refused == there.not_declared == ()
    count = sum(map(len, (declared.datasets, declared.sinks, declared.rules, declared.schedules)))
    assert there.unchanged == count


@given(declarations(), declarations())
def test_every_step_can_be_taken_and_after_a_crash_anywhere_the_rest_leads_to_the_same_lake(
    declared: Declaration, there: Declaration
) -> None:
    first = plan(declared, found(there, declared), EVERYTHING)
    assume(not first.refused)
    state = there
    for step in first.steps:
        fresh = state.datasets.keys() - there.datasets.keys()
        rest = plan(declared, found(state, declared, empty=fresh), EVERYTHING)
        assert not rest.refused and rest.steps[0] == step
        state = take(state, step)
    done = plan(declared, found(state, declared), EVERYTHING)
    assert done.steps == done.refused == ()
    assert state.datasets.keys() == declared.datasets.keys() and state.sinks.keys() == declared.sinks.keys()
    assert state.schedules == declared.schedules and state.rules == declared.rules
    for name, sink in declared.sinks.items():
        assert {k: state.sinks[name].options.get(k) for k in sink.options} == sink.options


@given(declarations(), declarations())
def test_without_prune_and_permission_nothing_is_lost(declared: Declaration, there: Declaration) -> None:
    made = plan(declared, found(there, declared), Wish())
    if made.refused:
        return  # and nothing is done at all
    assert all(step.needs is None and step.action is not StepAction.REMOVE for step in made.steps)
    state = there
    for step in made.steps:
        state = take(state, step)
    assert there.datasets.keys() <= state.datasets.keys() and there.sinks.keys() <= state.sinks.keys()
    assert there.schedules.keys() <= state.schedules.keys()
    for name, rule in state.rules.items():
        assert name not in there.datasets or not deletes_more(there.rules.get(name), rule) or rule == there.rules[name]
    for name, dataset in there.datasets.items():
        assert {c.name for c in dataset.columns} <= {c.name for c in state.datasets[name].columns}


@given(declarations(), declarations())
def test_what_is_there_and_not_declared_is_named(declared: Declaration, there: Declaration) -> None:
    made = plan(declared, found(there, declared), Wish())
    gone = there.datasets.keys() - declared.datasets.keys()
    assert sum(x.startswith("dataset ") for x in made.not_declared) == len(gone)
    assert {f"sink {n}" for n in there.sinks.keys() - declared.sinks.keys()} <= set(made.not_declared)


@given(rules, rules)
def test_of_two_rules_that_differ_at_most_one_direction_is_harmless(one: RetainSettings, other: RetainSettings) -> None:
    if one.spelled() == other.spelled():
        assert not deletes_more(one, other)
    else:
        assert deletes_more(one, other) or deletes_more(other, one)


def altered(columns: tuple[Column, ...]) -> Plan:
    return planned(lake(replace(EVENTS, columns=columns)), lake(EVENTS))


def test_columns_are_added_and_widened_and_no_more() -> None:
    there = lake(replace(EVENTS, columns=(*EVENTS.columns, Column("n", INT), Column("s", Struct((Column("x", INT),))))))
    wanted = (
        *EVENTS.columns,
        Column("n", LONG),
        Column("s", Struct((Column("x", LONG), Column("y", TEXT)))),
        Column("l", ListOf(TEXT)),
    )
    made = planned(lake(replace(EVENTS, columns=wanted)), there)
    assert not made.refused
    assert [s.details for s in made.steps] == [
        ("widen column n: long", "widen column s.x: long", "add column s.y: string", "add column l: list<string>")
    ]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ((Column("id", INT, required=True), Column("who", TEXT)), "column id: long cannot become int"),
        ((Column("id", LONG), Column("who", TEXT)), "column id: it is required, and cannot become optional"),
        ((*EVENTS.columns, Column("n", INT, required=True)), "column n: a new column of a dataset that is there is"),
        ((Column("ID", LONG, required=True), Column("who", TEXT)), "column ID: there is id, which differs only in"),
    ],
)
def test_a_column_that_cannot_become_what_is_declared_is_refused(columns: tuple[Column, ...], reason: str) -> None:
    made = altered(columns)
    assert [r.reason[: len(reason)] for r in made.refused] == [reason]


def test_dropping_a_column_needs_a_word_and_comes_after_the_sinks_that_named_it() -> None:
    fewer = replace(EVENTS, columns=EVENTS.columns[:1])
    there = lake(EVENTS, replace(OUT, options={"path": "out", "columns": "who"}))
    declared = lake(fewer, OUT)
    (column, sink) = planned(declared, there).refused
    assert "--allow drop-column" in str(column.hint) and "--allow change-delivery" in str(sink.hint)
    made = planned(declared, there, Permission.DROP_COLUMN, Permission.CHANGE_DELIVERY)
    assert [(s.what, s.details) for s in made.steps] == [
        ("sink", ("columns: who → not set",)),
        ("dataset", ("drop column who",)),
    ]


def test_a_sink_that_goes_frees_its_destination_before_another_takes_it() -> None:
    made = planned(lake(EVENTS, replace(OUT, name="new")), lake(EVENTS, OUT), Permission.REMOVE_SINK, prune=True)
    assert [(s.action.value, s.name) for s in made.steps] == [("remove", "out"), ("create", "new")]


def test_another_destination_kind_or_dataset_is_refused() -> None:
    orders = replace(EVENTS, name="default.orders")
    for other in (
        replace(OUT, options={"path": "elsewhere"}),
        replace(OUT, kind="forward"),
        replace(OUT, dataset="default.orders"),
    ):
        (refused,) = planned(lake(EVENTS, orders, other), lake(EVENTS, orders, OUT), *Permission).refused
        assert "cannot become" in refused.reason and refused.name == "out"


def test_options_that_only_set_the_pace_need_no_word() -> None:
    quicker = replace(OUT, options={"path": "out", "chunk_rows_max": "10"})
    made = planned(lake(EVENTS, quicker), lake(EVENTS, OUT))
    assert not made.refused and made.steps[0].details == ("chunk_rows_max: not set → 10",)
    assert planned(lake(EVENTS, replace(OUT, options={"path": "out", "where": "id > 3"})), lake(EVENTS, OUT)).refused


def test_a_default_that_is_not_declared_is_kept_and_comes_back() -> None:
    posts = SinkSpec("out", "default.events", "forward", {"path": "out"})
    stored = replace(posts, options={"path": "out", "chunk_rows_max": "5000"})
    assert planned(lake(EVENTS, posts), lake(EVENTS, stored)).steps == ()
    changed = replace(posts, options={"path": "out", "chunk_rows_max": "7"})
    (back,) = planned(lake(EVENTS, posts), lake(EVENTS, changed), Permission.CHANGE_DELIVERY).steps
    assert back.details == ("chunk_rows_max: 7 → 5000",)
    assert planned(lake(EVENTS, posts), lake(EVENTS, posts)).steps == (), "it was added before the default existed"


def test_deliver_by_and_partition_by_stay_and_an_adopted_table_is_not_made() -> None:
    for other in (
        replace(EVENTS, deliver_by=("who",)), replace(EVENTS, partition_by=("who",)), replace(EVENTS, shards=4)
    ):  # fmt: skip
        assert "cannot become" in planned(lake(other), lake(EVENTS), *Permission).refused[0].reason
    (refused,) = planned(lake(replace(EVENTS, adopted=History.SKIP)), lake()).refused
    assert "strandline dataset adopt events --history skip" in str(refused.hint)


def test_a_rule_for_a_new_dataset_needs_no_word_and_one_for_rows_that_are_kept_does() -> None:
    rule = {"default.events": RetainSettings(older_than=timedelta(days=30))}
    assert not planned(lake(EVENTS, rules=rule), lake()).refused
    (refused,) = planned(lake(EVENTS, rules=rule), lake(EVENTS)).refused
    assert "--allow delete-rows" in str(refused.hint)
    longer = {"default.events": RetainSettings(older_than=timedelta(days=40))}
    made = planned(lake(EVENTS, rules=longer), lake(EVENTS, rules=rule))
    assert not made.refused and made.steps[0].details == ("older_than: 30d → 40d",)
    assert planned(lake(EVENTS, rules=rule), lake(EVENTS, rules=longer)).refused
    assert [s.action for s in planned(lake(EVENTS), lake(EVENTS, rules=rule), prune=True).steps] == [StepAction.REMOVE]


def test_what_the_settings_file_has_is_refused_in_a_declaration() -> None:
    declared = lake(
        EVENTS,
        rules={"default.events": RetainSettings(older_than=timedelta(days=3))},
        schedules={"retain": "30 3 * * *"},
    )
    named = {"retain.default.events": "maintain.retain.default.events", "schedule.retain": "maintain.retain_schedule"}
    made = plan(declared, found(lake(EVENTS), declared, named), EVERYTHING)
    assert [r.reason for r in made.refused] == [
        "maintain.retain.default.events is set in the settings file or the environment, and has one place at a time",
        "maintain.retain_schedule is set in the settings file or the environment, and has one place at a time",
    ]


def test_a_sink_or_a_rule_needs_its_dataset() -> None:
    rule = {"default.nothing": RetainSettings(older_than=timedelta(days=3))}
    made = planned(lake(replace(OUT, dataset="default.nothing"), rules=rule), lake())
    assert [(r.what, r.name) for r in made.refused] == [("sink", "out"), ("retain", "nothing")]
    declared = lake(OUT, rules={"default.events": rule["default.nothing"]})
    dropped = plan(declared, found(lake(EVENTS, OUT), declared), EVERYTHING)
    assert [(r.what, r.reason) for r in dropped.refused] == [
        ("retain", "its dataset is not declared, and --prune drops it"),
        ("sink", "its dataset default.events is not declared, and --prune drops it"),
    ]


def test_a_schedule_that_begins_to_delete_needs_a_word() -> None:
    rules = {"default.events": RetainSettings(older_than=timedelta(days=3))}
    there, daily = lake(EVENTS, rules=rules), {"retain": "30 3 * * *"}
    declared = lake(EVENTS, rules=rules, schedules=daily)
    assert [r.name for r in planned(declared, there).refused] == ["retain"]
    assert not planned(declared, there, Permission.DELETE_ROWS).refused
    without = lake(EVENTS, schedules=daily)
    assert planned(without, there).refused, "the rule is there, though it is not declared"
    assert not planned(without, there, prune=True).refused, "the rule goes"
    by_settings = {"retain.default.events": "maintain.retain.default.events"}
    assert plan(without, found(lake(EVENTS), without, by_settings), Wish()).refused
    assert not plan(declared, found(there, declared, empty={"default.events"}), Wish()).refused
    assert not planned(without, lake(EVENTS)).refused
    later = lake(EVENTS, rules=rules, schedules={"retain": "30 4 * * *"})
    assert not planned(later, declared).refused, "it deletes already"


def test_a_schedule_of_a_reconciler_that_acts_needs_a_word() -> None:
    acts, nightly = {"reconcile_act": "true"}, {"reconcile": "17 4 * * *"}
    assert [r.name for r in planned(lake(schedules=nightly), lake(schedules=acts)).refused] == ["reconcile"]
    assert not planned(lake(schedules=nightly), lake(schedules=acts), Permission.RECONCILE_ACT).refused
    assert not planned(lake(schedules=nightly), lake(schedules=acts), prune=True).refused
    assert not planned(lake(schedules=nightly | acts), lake(schedules=acts | {"reconcile": "1 1 * * *"})).refused
    declared = lake(schedules=nightly)
    by_settings = replace(found(lake(), declared, {"schedule.reconcile_act": "reconcile.dry_run"}), settings_act=True)
    assert plan(declared, by_settings, Wish()).refused
    assert not plan(declared, replace(by_settings, settings_act=False), Wish()).refused


def acting(lake: Declaration) -> bool:
    return "reconcile" in lake.schedules and lake.schedules.get("reconcile_act") == "true"


@pytest.mark.parametrize("prune", [True, False])
@given(declarations(), declarations())
def test_without_a_word_the_reconciler_acts_at_no_moment_of_the_way(
    prune: bool, declared: Declaration, there: Declaration
) -> None:
    declared, there = (Declaration(schedules=x.schedules) for x in (declared, there))
    made = planned(declared, there, Permission.DELETE_ROWS, prune=prune)
    assume(not made.refused and not acting(there))
    for step in made.steps:
        there = take(there, step)
        assert not acting(there), step


def test_what_keeps_the_reconciler_from_acting_comes_before_its_schedule() -> None:
    nightly, there = {"reconcile": "17 4 * * *"}, lake(schedules={"reconcile_act": "true"})
    for declared, prune in ((nightly | {"reconcile_act": "false"}, False), (nightly, True)):
        made = planned(lake(schedules=declared), there, prune=prune)
        assert not made.refused and [s.name for s in made.steps] == ["reconcile_act", "reconcile"]
    both = planned(lake(schedules=nightly | {"reconcile_act": "true"}), lake(), Permission.RECONCILE_ACT)
    assert [s.name for s in both.steps] == ["reconcile", "reconcile_act"]


def test_a_password_in_an_option_of_a_foreign_kind_is_not_shown() -> None:
    address = "postgresql://u:hunter22hunter22@h/{}"
    old, new = (replace(OUT, options={"path": "out", "dsn": address.format(n)}) for n in ("a", "b"))
    for there in (lake(EVENTS), lake(EVENTS, old)):
        made = planned(lake(EVENTS, new), there, Permission.CHANGE_DELIVERY)
        told = [str(lake_documents.apply_plan(made, done=None)), *map(str, render_apply.plan(made))]
        assert "u:***@h/b" in told[0] and "hunter22" not in "".join(told)


def test_letting_the_reconciler_act_needs_a_word() -> None:
    assert planned(lake(schedules={"reconcile_act": "true"}), lake()).refused
    assert not planned(lake(schedules={"reconcile_act": "false", "reconcile": "17 4 * * *"}), lake()).refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[dataset", "not TOML"),
        ("[datasets.events]", "a declaration has no datasets; perhaps dataset is meant"),
        ("[dataset.events]", "dataset default.events has no columns"),
        ('[dataset.events]\ncolumns = [{ name = "id" }]', "dataset default.events: column id: its type is missing"),
        ('[dataset.events]\ncolumns = [{ name = "id", type = "long" }]\npartition_by = "no(id)"', "not a column"),
        ("[dataset.events]\nadopted = true\ncolumns = []", 'adopted must be "deliver" or "skip"'),
        ('[sink.out]\nkind = "files"', "sink out does not say its dataset"),
        ('[sink.out]\nkind = "files"\ndataset = "events"\nfrom = "then"', 'from must be "beginning" or "now"'),
        (
            '[sink.out]\nkind = "s3"\ndataset = "e"\n[sink.out.options]\nsecret_key = ["hunter22hunter22"]',
            "must be text, a",
        ),
        ("[schedule]\nretain = 3", "schedule: retain:"),
        ('[schedule]\nretain = "now"', "`now` is not a schedule"),
        ('[schedule]\nreconcile_act = "yes"', "reconcile_act must be true or false"),
        ('[schedule]\ncompakt = "1 1 * * *"', "schedule has no compakt; perhaps compact is meant"),
        ("[retain.events]\nolder_than = 30", "older_than: 30 is not a duration"),
        ('[retain.events]\nolder_than = "3d"\nkeep = 1', "keep: Extra inputs are not permitted"),
        ("dataset = 3", "dataset must be a table"),
        (
            '[dataset."default.e"]\ncolumns=[{name="i",type="int"}]\n[dataset.e]\ncolumns=[{name="i",type="int"}]',
            "twice",
        ),
    ],
)
def test_a_declaration_that_is_wrong_says_where(text: str, said: str) -> None:
    with pytest.raises(UsageError) as e:
        parse_declaration(text)
    assert said in e.value.message and "hunter22" not in e.value.message


def test_numbers_and_flags_are_options_too_and_a_namespace_may_be_written_with_dots() -> None:
    found = parse_declaration(
        '[dataset.shop.events]\ncolumns = [{ name = "id", type = "long" }]\npartition_by = "bucket( 4,id )"\n'
        '[sink.out]\ndataset = "shop.events"\nkind = "postgres"\noptions = { chunk_rows_max = 10, create = true }\n'
        '[retain.shop.events]\nolder_than = "24h"\n'
    )
    assert found.datasets["shop.events"].partition_by == ("bucket(4, id)",)
    assert found.sinks["out"].options == {"chunk_rows_max": "10", "create": "true"}
    assert found.rules["shop.events"].spelled() == {"older_than": "1d"}
