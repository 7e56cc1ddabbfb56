"""The Chinese words of pages, by the English ones."""

CHINESE: dict[str, str] = {}
