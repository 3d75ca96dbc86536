"""How a simulated server that can't start says so."""


class Refusal(Exception):
    """A server that exits instead of serving; `exit_code` and `text` are what vLLM would leave behind."""

    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.text = text
