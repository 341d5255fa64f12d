"""``python -m hgld`` is the ``hgld`` command."""

from hgld.cli import main

if __name__ == "__main__":
    main()
