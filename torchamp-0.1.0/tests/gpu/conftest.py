"""All tests in this folder use the card."""

import pathlib


def pytest_collection_modifyitems(items) -> None:
    folder = pathlib.Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker("card")
