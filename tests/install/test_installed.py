"""The folders that tests of several processes share."""

import threading
import time

from installed import locked


def test_a_second_test_waits_for_a_locked_folder() -> None:
    order = []

    def wait_for_it() -> None:
        with locked("one_at_a_time"):
            order.append("second")

    waiting = threading.Thread(target=wait_for_it)
    with locked("one_at_a_time"):
        waiting.start()
        time.sleep(0.2)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]
