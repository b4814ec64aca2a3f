"""Signals that ask a run to stop."""

import contextlib
import os
import signal
import threading

import pytest

from corral.running import signals


@pytest.mark.parametrize("number", signals.SIGNALS, ids=lambda n: n.name)
def test_the_first_signal_asks_and_the_second_stops_at_once(number):
    notes = []
    before = signal.getsignal(number)
    with signals.interruptible(notes.append) as asked:
        assert asked() == 0
        os.kill(os.getpid(), number)
        assert asked() == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
    assert len(notes) == 1
    assert "stopping when this iteration is done and saved" in notes[0]


def test_a_terminal_that_has_gone_does_not_stop_the_request():
    def gone(text):
        raise OSError(5, "Input/output error")

    with signals.interruptible(gone) as asked:
        os.kill(os.getpid(), signal.SIGHUP)
        assert asked() == signal.SIGHUP


def test_a_ctrl_c_that_a_library_swallowed_stops_the_run_before_it_begins():
    with signals.before_the_loop():
        with contextlib.suppress(KeyboardInterrupt):  # as a careless `except:` does
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), signals.interruptible(print):
            pytest.fail("the run began")
    with signals.interruptible(print) as asked:  # the next run is not harmed
        assert asked() == 0


def test_a_signal_that_the_process_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with signals.interruptible(print) as asked:
            os.kill(os.getpid(), signal.SIGHUP)
            assert asked() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_the_caller_s_own_handling_applies():
    found = []

    def look():
        with signals.interruptible(print) as asked:
            found.append((asked(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(0, signal.getsignal(signal.SIGINT))]
