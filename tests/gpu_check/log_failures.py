"""A pytest plugin that writes each failure to $FAILURES at once: a stopped run keeps them."""

import os


def pytest_runtest_logreport(report) -> None:
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ["FAILURES"], "a", encoding="utf-8") as file:
            file.write(f"#### {report.nodeid} [{report.when}]\n{report.longreprtext}\n")
