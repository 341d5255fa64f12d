"""The errors that people can meet, one small tree.

::

    HgldError                  anything hgld refuses; the command line prints it and exits with 2
    ├── InputError             a file or value from outside is not what it should be
    │   ├── TableError         a CSV or parquet table: columns, rows, encodings
    │   ├── ImageError         an image that cannot be used, with a reason to count by
    │   ├── HierarchyError     labels that do not form a tree
    │   └── SchemaError        a file of another schema version than this hgld reads
    ├── ConfigError            options that contradict each other or cannot be served
    ├── MissingResourceError   model weights or an optional package that cannot be had here
    ├── ServiceError           a remote service that kept refusing or answered nonsense
    ├── DivergenceError        a training loss that is no number
    └── StorageError           the disk: full, read-only, or changed under our feet

Every message names the file and the row or member, what was found, what was expected and the way out.
"""


class HgldError(Exception):
    """Root of every error that hgld raises on purpose."""


class InputError(HgldError, ValueError):
    """A file or value from outside is not what it should be."""


class TableError(InputError):
    """A table lacks a column, or a row of it cannot be used."""


class ImageError(InputError):
    """An image that cannot be used.

    Attributes:
        reason: short and stable, to count by: ``truncated``, ``too-many-pixels``, ...
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    def __reduce__(self) -> tuple[type["ImageError"], tuple[str, str]]:
        return type(self), (self.reason, str(self))


class HierarchyError(InputError):
    """Labels that do not form a tree."""


class SchemaError(InputError):
    """A file written under a schema version that this hgld does not read."""


class ConfigError(HgldError, ValueError):
    """Options that contradict each other or cannot be served."""


class MissingResourceError(HgldError):
    """Model weights or an optional package that cannot be had here."""


class ServiceError(HgldError):
    """A remote service that kept refusing, or that answered nonsense."""


class DivergenceError(HgldError, ArithmeticError):
    """A training loss that is not a finite number."""


class StorageError(HgldError, OSError):
    """The disk is full, read-only, or changed while we were writing."""
