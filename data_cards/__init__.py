"""Cards of the datasets that hgld can make, one Markdown file each."""

from pathlib import Path


def card_path(name: str) -> Path:
    """Return the path of a dataset's card, for example ``card_path("h-gldv2")``.

    Raises:
        FileNotFoundError: there is no card of that name; the message lists the existing ones.
    """
    folder = Path(__file__).parent
    cards = {path.stem: path for path in sorted(folder.glob("*.md"))}
    if name not in cards:
        raise FileNotFoundError(f"no data card {name!r} in {folder}; there are {', '.join(cards)}.")
    return cards[name]
