"""Writes checkpoints while training goes on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Writer:
    """Writes files one by one, at once or in the background. After an error it writes nothing more."""

    def __init__(self, *, background: bool) -> None:
        self._thread = ThreadPoolExecutor(1, "bayesrnn-writer") if background else None
        self._pending: list[Future[None]] = []
        self._failed = False

    def __call__(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            job()
        else:
            self._pending.append(self._thread.submit(self._run, job))

    def _run(self, job: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            job()
        except BaseException:
            self._failed = True
            raise

    def wait(self) -> None:
        """Wait until everything is written; raises the error, if there was one."""
        pending, self._pending = self._pending, []
        for job in pending:
            job.result()
