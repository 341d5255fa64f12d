"""Lists of images that benchmarks publish as plain text."""

from pathlib import Path

from hgld.errors import TableError

_MOST_BYTES = 256 << 20


def read_list_lines(path: str | Path) -> list[list[str]]:
    """The words of every line of a list, empty lines included.

    Raises:
        TableError: the file cannot be read, is larger than any benchmark's list, or is not UTF-8.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > _MOST_BYTES:
            raise TableError(f"{file}: {size} bytes; a list of images has at most {_MOST_BYTES}.")
        return [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise TableError(f"{file}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{file}: not a text file ({error}); expected a list of images in UTF-8.") from error
