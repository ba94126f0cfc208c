"""Decides whether a SQL condition gives the same answer for the same row, whenever and wherever it is evaluated.

Every retry, `verify` and maintenance evaluate a sink's condition again, perhaps years later and on other machines. So
it may depend only on the columns of the row: not on randomness, time, the session, other tables, or where the row is
stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from strandline.core.errors import UsageError
from strandline.iceberg.session.spark_internals import catalyst_of, parsed_expression, query_execution
from strandline.iceberg.spark.java_errors import explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# leaves that an expression may have; other leaves depend on more than the row
_LEAVES = {"AttributeReference", "Literal", "NamedLambdaVariable", "CommonExpressionRef", "Pi", "EulerNumber"}
# Spark takes these for deterministic unless their author says otherwise
_USER_FUNCTIONS = ("PythonUD", "ScalaUDF", "ScalaAggregator", "SQLScalarFunction", "Hive")
# `timestamp'now'` is an ordinary literal after Spark has parsed it
_SPECIAL_LITERAL = re.compile(r"(?i)\b(?:date|timestamp(?:_ntz|_ltz)?)\s*r?['\"]\s*(now|today|tomorrow|yesterday)\b")


def find_other_tables(df: DataFrame, where: str) -> str | None:
    """The problem of a condition that reads other tables; None if it reads none. Does not let Spark read those tables:
    its errors would show their columns to a user who may add a sink to this dataset only. Raises what Spark's parser
    raises."""
    asks = catalyst_of(df.sparkSession).trees.TreePattern.PLAN_EXPRESSION()
    found = parsed_expression(df.sparkSession, where).containsPattern(asks)
    return "it reads other tables, whose rows change" if found else None


def find_instability(df: DataFrame, where: str) -> str | None:
    """The part of the condition that depends on more than the row; None if there is none. Raises what Spark's parser
    and analyser raise for a condition that does not fit the rows."""
    if (unstable := find_other_tables(df, where)) is not None:
        return unstable
    plan: Any = query_execution(df.where(where)).analyzed()
    condition = _filter_of(plan).condition()
    catalyst = catalyst_of(df.sparkSession)
    patterns = catalyst.trees.TreePattern
    columns = set(df.columns)
    if special := _SPECIAL_LITERAL.search(where):
        return f"'{special[1]}' is another time at every evaluation"
    if found := _innermost(condition, lambda e: not e.deterministic()):
        return f"{found.sql()} gives another value at every evaluation"
    if found := _innermost(condition, lambda e: e.containsPattern(patterns.CURRENT_LIKE())):
        return f"{found.sql()} depends on the time or the session"
    for part in _parts(condition):
        kind = part.getClass().getSimpleName()
        if kind.startswith(_USER_FUNCTIONS):
            return f"{part.sql()} is a user-defined function, and it is unknown what it depends on"
        if kind == "AttributeReference" and part.name() not in columns:
            return f"{part.name()} is where the row is stored, which compaction changes"
        if part.children().isEmpty() and kind not in _LEAVES:
            return f"{part.sql()} is not a value of the row"
    if not catalyst.optimizer.SpecialDatetimeValues.apply(plan).equals(plan):
        return "a text such as 'now' or 'today' is another time at every evaluation"
    return None


def check_condition(df: DataFrame, where: str, rows: str, *, hint: str) -> None:
    """Raises UsageError for a condition that does not fit the rows, or does not give the same answer each time."""
    try:
        unstable = find_instability(df, where)
    except Exception as e:
        raise UsageError(
            f"the condition `{where}` does not fit {rows}: {explain(e, 'it cannot be read').message}", hint=hint
        ) from e
    if unstable is not None:
        raise UsageError(f"the condition `{where}` cannot choose rows: {unstable}", hint=hint)


def _filter_of(plan: Any) -> Any:
    """The filter is below a projection if the condition reads a column that the frame does not show."""
    while plan.nodeName() != "Filter":
        plan = plan.children().apply(0)
    return plan


def _children(expression: Any) -> list[Any]:
    children = expression.children()
    return [children.apply(i) for i in range(children.size())]


def _parts(expression: Any) -> list[Any]:
    return [expression, *(part for child in _children(expression) for part in _parts(child))]


def _innermost(expression: Any, holds: Callable[[Any], bool]) -> Any | None:
    """The deepest part for which `holds` is true; it is also true for everything around that part."""
    if not holds(expression):
        return None
    inside = (_innermost(child, holds) for child in _children(expression))
    return next((found for found in inside if found is not None), expression)
