"""A listener for tests."""


class Listener:
    """A listener that keeps the news: steps, details, and both in their order."""

    def __init__(self) -> None:
        self.news: list[str] = []
        self.steps: list[str] = []
        self.details: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)
        self.news.append(text)

    def detail(self, text: str) -> None:
        self.details.append(text)
        self.news.append(text)
