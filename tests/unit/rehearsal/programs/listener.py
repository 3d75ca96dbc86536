class Listener:
    """Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.details: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)

    def detail(self, text: str) -> None:
        self.details.append(text)
