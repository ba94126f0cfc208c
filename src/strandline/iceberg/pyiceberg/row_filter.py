"""Conditions on rows: which files may have rows that meet one, and the same condition as an Arrow expression.

Importing this imports PyIceberg: heavy paths only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotNull,
    Or,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind, extract_field_ids, rewrite_not
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.types import DoubleType, FixedType, FloatType, NestedField, TimeType, UUIDType

from strandline.core.errors import UsageError
from strandline.iceberg.pyiceberg.internals import file_may_match

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

_OPERATIONS: dict[str, Any] = {
    "=": EqualTo, "<": LessThan, "<=": LessThanOrEqual, ">": GreaterThan, ">=": GreaterThanOrEqual, "in": In,
    "starts with": StartsWith, "is null": IsNull, "is not null": NotNull,
}  # fmt: skip
_WITHOUT_VALUE = ("is null", "is not null")


@dataclass(frozen=True, slots=True)
class ColumnComparison:
    """A condition on one column, with a Python value."""

    column: str
    operation: str  # a key of `_OPERATIONS`
    value: Any = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class RowFilter:
    schema: Schema
    condition: BooleanExpression

    @property
    def columns(self) -> frozenset[str]:
        """The top-level columns that the condition uses."""
        return frozenset(f.name for f in self.schema.fields if f.field_id in extract_field_ids(self._bound))

    @property
    def in_arrow(self) -> pc.Expression:
        return expression_to_pyarrow(self._bound, self.schema)

    @property
    def _bound(self) -> BooleanExpression:
        return bind(self.schema, _as_in_sql(rewrite_not(self.condition)), case_sensitive=True)

    def may_match(self, file: DataFile) -> bool:
        """Whether the file may have rows that meet the condition, by the bounds of its columns."""
        return file_may_match(self.schema, self.condition, file)


def _as_in_sql(condition: BooleanExpression) -> BooleanExpression:
    """The condition with comparisons that are false for null, as in SQL. In Arrow, null is outside of any list, so NOT
    IN is true for it. And a comparison with a value that the column cannot have becomes true or false, also for null.
    The condition must have NOT only in its comparisons."""
    match condition:
        case And(left=left, right=right):
            return And(_as_in_sql(left), _as_in_sql(right))
        case Or(left=left, right=right):
            return Or(_as_in_sql(left), _as_in_sql(right))
        case IsNull() | NotNull():
            return condition
        case UnboundPredicate(term=term):
            return And(NotNull(term=term), condition)
    return condition


def parse_where(schema: Schema, text: str) -> RowFilter:
    """Raises UsageError if the condition does not parse, or names a column that is unknown or not comparable."""
    hint = "Use comparisons with values, IN (…), IS NULL, LIKE 'abc%', AND, OR and NOT."
    try:
        condition = parse(text)
        used = extract_field_ids(bind(schema, rewrite_not(condition), case_sensitive=True))
    except Exception as e:  # the parser and the binder raise whatever their libraries raise
        raise UsageError(f"the condition {text!r} cannot be used: {' '.join(str(e).split())}", hint=hint) from e
    if not used <= {f.field_id for f in schema.fields if _is_plain(f)}:
        raise UsageError(f"the condition {text!r} uses a nested column, a uuid or a fixed", hint=hint)
    return RowFilter(schema, condition)


def _is_plain(field: NestedField) -> bool:
    """Whether the column's values compare alike in Iceberg, Arrow and Spark, except NaN."""
    return field.field_type.is_primitive and not isinstance(field.field_type, UUIDType | FixedType | TimeType)


def equals(schema: Schema, column: str, text: str) -> RowFilter:
    """The condition that a text column has this value."""
    return RowFilter(schema, _expression(ColumnComparison(column, "=", text)))


def of_comparison(schema: Schema, comparison: ColumnComparison) -> RowFilter | None:
    """The comparison as a filter. None if it cannot be expressed, or if it means something else in Iceberg than in
    Spark: only in Spark, for example, NaN is above all other numbers."""
    field = next((f for f in schema.fields if f.name == comparison.column), None)
    if field is None or not _is_plain(field) or isinstance(field.field_type, FloatType | DoubleType):
        return None
    try:
        row_filter = RowFilter(schema, _expression(comparison))
        _ = row_filter.in_arrow, row_filter.columns  # fails for a value that does not fit the column
    except Exception:  # Spark filters the rows itself
        return None
    return row_filter


def _expression(comparison: ColumnComparison) -> BooleanExpression:
    operation = _OPERATIONS[comparison.operation]
    values = () if comparison.operation in _WITHOUT_VALUE else (comparison.value,)
    expression: BooleanExpression = operation(comparison.column, *values)
    return Not(expression) if comparison.negated else expression


def all_of(filters: Sequence[RowFilter]) -> RowFilter | None:
    """The filter that meets all of these conditions. None if there are none."""
    if not filters:
        return None
    condition = filters[0].condition
    for further in filters[1:]:
        condition = And(condition, further.condition)
    return RowFilter(filters[0].schema, condition)
