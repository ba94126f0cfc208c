"""Decides whether a SQL condition gives the same result for the same row, whenever and wherever it is evaluated.

Retries, `verify` and maintenance evaluate a sink's condition again, perhaps years later and on other machines. So it
may depend only on the columns of the row: not on randomness, time, the session, other tables, or where the row is
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

# the leaves that an expression may have; other leaves depend on more than the row
_LEAVES = {"AttributeReference", "Literal", "NamedLambdaVariable", "CommonExpressionRef", "Pi", "EulerNumber"}
# Spark treats these as deterministic unless their author says otherwise
_USER_FUNCTIONS = ("PythonUD", "ScalaUDF", "ScalaAggregator", "SQLScalarFunction", "Hive")
# `timestamp'now'` is an ordinary literal after Spark has parsed it
_SPECIAL_LITERAL = re.compile(r"(?i)\b(?:date|timestamp(?:_ntz|_ltz)?)\s*r?['\"]\s*(now|today|tomorrow|yesterday)\b")


def find_other_tables(df: DataFrame, where: str) -> str | None:
    """The problem of a condition that reads other tables. None if it reads none. Only parses the condition: if Spark
    resolved those tables, its errors would show their columns to a user who may add a sink to this dataset only. Raises
    the errors of Spark's parser."""
    subquery = catalyst_of(df.sparkSession).trees.TreePattern.PLAN_EXPRESSION()
    has_subquery = parsed_expression(df.sparkSession, where).containsPattern(subquery)
    return "it reads other tables, whose rows change" if has_subquery else None


def find_instability(df: DataFrame, where: str) -> str | None:
    """Why the condition depends on more than the row, with the part that does. None if it does not. For a condition
    that does not fit the rows, raises the errors of Spark's parser and analyzer."""
    if (unstable := find_other_tables(df, where)) is not None:
        return unstable
    plan: Any = query_execution(df.where(where)).analyzed()
    condition = _filter_of(plan).condition()
    catalyst = catalyst_of(df.sparkSession)
    patterns = catalyst.trees.TreePattern
    columns = set(df.columns)
    if special := _SPECIAL_LITERAL.search(where):
        return f"'{special[1]}' stands for another time at each evaluation"
    if inner := _innermost(condition, lambda e: not e.deterministic()):
        return f"{inner.sql()} gives another value at each evaluation"
    if inner := _innermost(condition, lambda e: e.containsPattern(patterns.CURRENT_LIKE())):
        return f"{inner.sql()} depends on the time or the session"
    for part in _parts(condition):
        kind = part.getClass().getSimpleName()
        if kind.startswith(_USER_FUNCTIONS):
            return f"{part.sql()} is a user-defined function, and it is unknown what it depends on"
        if kind == "AttributeReference" and part.name() not in columns:
            return f"{part.name()} depends on where the row is stored, which compaction changes"
        if part.children().isEmpty() and kind not in _LEAVES:
            return f"{part.sql()} is not a value of the row"
    if not catalyst.optimizer.SpecialDatetimeValues.apply(plan).equals(plan):
        return "a text such as 'now' or 'today' stands for another time at each evaluation"
    return None


def check_condition(df: DataFrame, where: str, rows: str, *, hint: str) -> None:
    """Raises UsageError for a condition that does not fit the rows, or does not give the same result each time. `rows`
    names them in the message."""
    try:
        unstable = find_instability(df, where)
    except Exception as e:
        raise UsageError(
            f"the condition `{where}` does not fit {rows}: {explain(e, 'it cannot be read').message}", hint=hint
        ) from e
    if unstable is not None:
        raise UsageError(f"the condition `{where}` cannot choose rows: {unstable}", hint=hint)


def _filter_of(plan: Any) -> Any:
    """The filter in the plan. It is below a projection if the condition reads a column that the frame does not show."""
    while plan.nodeName() != "Filter":
        plan = plan.children().apply(0)
    return plan


def _children(expression: Any) -> list[Any]:
    children = expression.children()
    return [children.apply(i) for i in range(children.size())]


def _parts(expression: Any) -> list[Any]:
    return [expression, *(part for child in _children(expression) for part in _parts(child))]


def _innermost(expression: Any, holds: Callable[[Any], bool]) -> Any | None:
    """The deepest part for which `holds` is true. It is also true for all parts around that one."""
    if not holds(expression):
        return None
    inner = (_innermost(child, holds) for child in _children(expression))
    return next((part for part in inner if part is not None), expression)
