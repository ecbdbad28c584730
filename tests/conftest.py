"""A fixture for the tests of every folder."""

import logging

import pytest


class Heard(logging.Handler):
    """What torchamp logs, as text."""

    def __init__(self) -> None:
        super().__init__()
        self._text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self._text += f"{record.levelname}: {record.getMessage()}\n"

    def take(self) -> str:
        """What was logged since the last call."""
        text, self._text = self._text, ""
        return text


@pytest.fixture
def heard():
    """Heard, of messages of every level."""
    logger = logging.getLogger("torchamp")
    handler, level = Heard(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.setLevel(level)
    logger.removeHandler(handler)
