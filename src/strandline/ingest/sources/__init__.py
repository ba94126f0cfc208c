"""Reads the files that `strandline ingest` takes: JSON lines, CSV and Parquet.

    identify.py     which format and compression a file has, and the batch id of its bytes   (no Spark, no Arrow)
    read.py         a file as a DataFrame: the dataset's columns, each row's line, and why a row does not fit
    positions.py    how many bytes of a file tasks have read
    failures.py     what went wrong inside a Spark task, as an error that names the file

    values.py       the rules: one written value, one type                                   (plain Python)
    rows.py         the rules: one line of a file, one schema; says why a row does not fit   (plain Python)
    columns.py      the same rules over whole Arrow columns
    misfits.py      which values keep a column from being converted as a whole
    json_filter.py  which JSON lines Arrow's parser cannot take
    lines.py        bytes to blocks of numbered lines
    maps.py         JSON objects that are maps, rewritten for Arrow's parser
    blocks.py       a block to typed columns, with the reasons for the rows that do not fit
    jsonl.py, delimited.py, parquet.py   one format each
    body.py         JSON lines in memory, such as a request's body

The row parser (`rows.py`) decides what fits. `columns.py` is fast, and may be stricter, never more lenient: it converts
a column as a whole or not at all. If it cannot, `misfits.py` and `json_filter.py` find the rows that may not fit, and
the row parser reads only those. If they cannot be found, the block is halved until few rows are left, and the row
parser reads these. So whichever module reads a row, it is read or rejected as `rows.py` says.

What fits
---------
A value is never silently coerced, rounded or dropped. A row with a value that does not fit is rejected as a whole.

- *boolean*: `true`, `false` (in CSV, upper or lower case).
- *int, long*: written as an integer in JSON's grammar, and in range; `1.0` is not one.
- *float, double*: a JSON number in range, or the strings `NaN`, `Infinity`, `-Infinity`. A number that is too small
  (1e-400) is out of range like one that is too large: it would become 0.
- *decimal*: a JSON number, or a string with one, that is exact in the column's precision and scale.
- *string*: a JSON string; never a number or an object. *binary*: base64 with padding.
- *date*: `YYYY-MM-DD`. Years beyond four digits or before 0 have a sign (`+12024-02-29`, `-0043-03-15`), over the whole
  range of the type. The year 0000 is 1 BC.
- *timestamp*: a date, or a date, `T` or a space, and `HH[:MM[:SS[.ffffff]]]`. Parts that are left out are zero. There
  is no offset. More than six digits of a second do not fit, because they would be lost.
- *timestamptz*: the same, and after the time `Z`, `±HH`, `±HHMM` or `±HH:MM`. Without one, the time is in UTC.
- *struct*: an object. *list*: an array. *map*: an object, its keys written as in CSV. All levels are checked.
- A column that is left out is null. A null in a required column, an unknown column, or a key that occurs twice in an
  object: the row is rejected.

CSV: comma, double quotes, a header. An empty field is null, `""` is the empty string. Nested columns are not supported.
A file is refused as a whole (`InputError`) if its header or its Parquet schema does not fit, or its bytes are damaged.
Blank lines are skipped, and counted in line numbers.
"""
