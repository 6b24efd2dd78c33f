"""Work that several threads do at the same time, each on cores of its own.

The operations of a small network are too short to be shared among cores one by one: threads wait for each other after
every convolution. Threads that run whole networks, each on some of the images, wait for nothing but the next images.
"""

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits

Job = TypeVar("Job")
Done = TypeVar("Done")

SECONDS_BETWEEN_REPORTS = 0.1

# Python takes some 10 us to start an operation, one worker at a time, and an operation some 0.1 us per pixel. With this
# many pixels for each worker and times the number of workers, none of them waits long for its turn.
PIXELS_PER_TURN = 800


@dataclass(frozen=True)
class Crew:
    """How the cores of a process are shared out.

    Attributes:
        workers: Number of jobs at the same time.
        threads: Threads within an operation of a job.
    """

    workers: int
    threads: int

    @classmethod
    def of(cls, batch: tuple[int, ...]) -> "Crew | None":
        """Share out the threads that PyTorch has in this thread.

        Args:
            batch: Shape of a batch of images, `(B, C, H, W)`.

        Returns:
            The crew, or None where one worker is best.
        """
        threads = torch.get_num_threads()
        workers = min(threads, batch[0], math.isqrt(batch[0] * math.prod(batch[2:]) // PIXELS_PER_TURN))
        return cls(workers, threads // workers) if workers > 1 else None

    def parts(self, size: int) -> Iterator[slice]:
        """Cut `size` images into a part for each worker, fewer where there are fewer images."""
        number = max(1, min(self.workers, size))
        edges = [size * part // number for part in range(number + 1)]
        return itertools.starmap(slice, itertools.pairwise(edges))


class Tally:
    """How much is done, counted by all threads and told by the one that made it.

    Args:
        tell: Called with the number done and the total.
        total: The number that there is to do, where it is known.
    """

    def __init__(self, tell: Callable[[int, int | None], None] | None, total: int | None) -> None:
        self._tell = tell
        self._total = total
        self._owner = threading.get_ident()
        self._lock = threading.Lock()
        self._stopped = False
        self._done = self._told = 0

    def add(self, number: int) -> None:
        """Count some more, or take some back; raises `CancelledError` after `stop`."""
        if self._stopped:
            raise CancelledError
        with self._lock:
            self._done += number
        if threading.get_ident() == self._owner:
            self.report()

    def report(self) -> None:
        """Tell what is done, if there is news."""
        if self._tell is not None and self._done != self._told:
            self._told = self._done
            self._tell(self._told, self._total)

    def stop(self) -> None:
        """Have whoever counts on end early."""
        self._stopped = True


def side_by_side(
    work: Callable[[Job], Done], jobs: Iterable[Job], crew: Crew, tally: Tally
) -> Generator[Done, None, None]:
    """Do jobs in several threads.

    Args:
        work: Does a job, in inference mode, and counts in the tally. It must neither write what other jobs read nor
            draw random numbers.
        jobs: What to do; read in the caller's thread, a few jobs ahead.
        crew: How many at a time.
        tally: Reports in the caller's thread while that waits, and ends the jobs under way after an error or an
            interruption.

    Yields:
        What the jobs gave, in their order. The first job that fails raises here.
    """

    def start() -> None:
        # the limit holds for this thread alone; PyTorch would put its own number in place of it at its first use
        torch.get_num_threads()
        threadpool_limits(crew.threads, user_api="openmp")

    def run(job: Job) -> Done:
        with torch.inference_mode():
            return work(job)

    pending: deque[Future[Done]] = deque()
    pool = ThreadPoolExecutor(crew.workers, "resprobe", initializer=start)
    try:
        for job in jobs:
            pending.append(pool.submit(run, job))
            if len(pending) == 2 * crew.workers:
                yield _result(pending.popleft(), tally)
        while pending:
            yield _result(pending.popleft(), tally)
    except BaseException:
        tally.stop()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _result(job: Future[Done], tally: Tally) -> Done:
    while not job.done():
        wait([job], SECONDS_BETWEEN_REPORTS)
        tally.report()
    result = job.result()
    tally.report()
    return result
