from threading import Event

from bayesrnn.lab.engine.progress import heartbeat


def test_long_work_says_that_it_goes_on():
    lines, said = [], Event()

    def say(text):
        lines.append(text)
        said.set()

    with heartbeat(say, "Validation after epoch 1", every=0.001):
        assert said.wait(60)
    assert lines[0] == "Validation after epoch 1: 1 s so far."
