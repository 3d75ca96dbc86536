"""A listener for tests."""


class Listener:
    """A listener that keeps the news."""

    def __init__(self) -> None:
        self.news: list[str] = []

    def step(self, text: str) -> None:
        self.news.append(text)

    def detail(self, text: str) -> None:
        self.news.append(text)
