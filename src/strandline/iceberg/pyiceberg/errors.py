"""Translates PyIceberg's errors into ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from gzip import BadGzipFile

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.exceptions import ValidationError as InvalidMetadata

from strandline.core.errors import NoSuchDataset, SchemaError, StorageError, StrandlineError, TableUnfit

_OWN_OR_RETRIED = (StrandlineError, CommitFailedException, CommitStateUnknownException, TableAlreadyExistsError)
_NOT_OF_THE_TABLE = (*_OWN_OR_RETRIED, NoSuchTableError, NoSuchNamespaceError, NotImplementedError, OSError, RESTError)

UNREACHABLE_HINT = "Check that the REST catalog at catalog.uri is up and can be reached from here."
DENIED_HINT = "Check the credentials in catalog.options, and what the catalog allows them to do."


@contextmanager
def opening(what: str) -> Iterator[None]:
    """Use around code that reads a table's metadata. Like `explained`, and any error of the table itself becomes
    TableUnfit: a damaged file may make its reader raise anything, and one such table must not affect the others."""
    with explained(what):
        try:
            yield
        except BadGzipFile as e:  # an OSError, but of the content
            raise TableUnfit(f"{what} cannot be opened: {describe_error(e)}") from e
        except _NOT_OF_THE_TABLE:
            raise
        except Exception as e:
            if _is_from("sqlalchemy", e):
                raise
            raise TableUnfit(f"{what} cannot be opened: {describe_error(e)}") from e


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Translates PyIceberg's errors. Lets conflicts pass, because the caller retries them."""
    try:
        yield
    except _OWN_OR_RETRIED:
        raise
    except (NoSuchTableError, NoSuchNamespaceError) as e:
        raise NoSuchDataset(f"there is no table {what}", hint="`strandline dataset list` shows the datasets.") from e
    except NotImplementedError as e:
        raise TableUnfit(
            f"{what} has a format version that PyIceberg can read but not change", hint="Change it with Spark SQL."
        ) from e
    except (UnauthorizedError, ForbiddenError) as e:
        raise StorageError(f"{what}: the catalog refuses access: {_briefly(e)}", hint=DENIED_HINT) from e
    except RESTError as e:
        raise StorageError(f"{what} cannot be reached: {_briefly(e)}", hint=UNREACHABLE_HINT) from e
    except (ValueError, InvalidMetadata, OSError) as e:
        if _is_from("requests", e):
            raise StorageError(f"{what} cannot be reached: {_briefly(e)}", hint=UNREACHABLE_HINT) from e
        if isinstance(e, OSError):
            raise StorageError(f"{what} cannot be reached: {e}") from e
        raise SchemaError(f"{what}: {e}") from e
    except Exception as e:
        if _is_from("sqlalchemy", e):
            raise StorageError(f"{what}: the catalog's database: {e}", hint="Another process may lock it.") from e
        raise


def _is_from(library: str, error: Exception) -> bool:
    """PyIceberg does not translate the errors of its libraries, and some errors of `requests` are ValueErrors, too.
    Checked by name, so that the library need not be imported."""
    return type(error).__module__.startswith(f"{library}.")


def _briefly(error: Exception) -> str:
    """The first line of the message: a gateway answers with whole pages."""
    return (str(error).splitlines() or [type(error).__name__])[0][:500]


def describe_error(error: Exception) -> str:
    """The first line of the message. Of a validation report, the line that says what is wrong: the others only locate
    it in the validator."""
    lines = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
    return next((line for line in lines if "error," in line), lines[0]).partition(" [type=")[0]
