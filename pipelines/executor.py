"""Work in other processes: units in a supervised pool or on a Ray cluster, and isolated calls that may crash.

A unit is idempotent: it leaves a complete file or no file, and a second run writes the same bytes. So the units of a
killed worker or build can run again, and the result does not depend on the worker.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from hgld.errors import HgldError, MissingResourceError, optional_dependency

if TYPE_CHECKING:
    from collections.abc import Iterator


ATTEMPTS = 3
START = "spawn"  # start method "spawn", because threads do not survive a fork
_UNITS_AHEAD = 2  # number of units queued per worker, so that no worker waits for its next unit


class Unit(Protocol):
    """A piece of work that can be pickled and has a readable name."""

    @property
    def name(self) -> str: ...


_Unit = TypeVar("_Unit", bound=Unit)
_Result = TypeVar("_Result")


def run_units(
    work: Callable[[_Unit], _Result],
    units: Sequence[_Unit],
    done: Callable[[_Unit, _Result], None],
    *,
    executor: Literal["local", "ray"] = "local",
    workers: int = 0,
    ray_address: str = "",
) -> None:
    """Run all units, in any order.

    Args:
        work: a function at the top level of a module, so that other processes can import it.
        units: the units of work.
        done: function called in this process with every finished unit and its result.
        executor: backend that runs the units: ``local`` or ``ray``.
        workers: maximum number of processes; 0: one per core (of the cluster, with Ray). One local worker is this
            process.
        ray_address: address of a running Ray cluster; empty: a cluster is started here.

    Raises:
        HgldError: a unit raised an error or ran out of memory, or its worker died :data:`ATTEMPTS` times. Finished
            units stay done.
        MissingResourceError: Ray is requested but not installed.
    """
    if executor == "ray":
        run_on_ray(work, units, done, workers=workers, address=ray_address)
        return
    processes = min(workers or available_cores(), len(units))
    if processes <= 1:
        for unit in units:
            try:
                result = work(unit)
            except MemoryError as error:
                raise lacks_memory(unit) from error
            done(unit, result)
    else:
        _SupervisedPool(work, processes).run(units, done)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_Argument = TypeVar("_Argument")


class ProcessEndedError(Exception):
    """A process that ended before its result: it crashed in native code, exited, or took too long."""


def run_alone(work: Callable[[_Argument], _Result], argument: _Argument, *, seconds: float, memory: int) -> _Result:
    """Call a function in its own process, so that a crash, a hang or a lack of memory does not end the calling process.

    The process is not a sandbox: it has the same permissions as the calling process. Its start takes about half a
    second.

    Args:
        work: a function at the top level of a module, so that the process can import it.
        argument: argument of ``work``; like the result and errors, it is pickled.
        seconds: time after which the process is killed.
        memory: number of bytes that the process may allocate after its start; a larger allocation raises MemoryError
            (Linux only).

    Raises:
        ProcessEndedError: the process ended before its result, or was killed.
        Exception: ``work`` raised it.
    """
    context = multiprocessing.get_context(START)
    answers, answer = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(work, argument, memory, answer), daemon=True)
    process.start()
    answer.close()
    try:
        if not answers.poll(seconds):
            raise ProcessEndedError(f"the process did not finish within {seconds:g} s")
        result, error = answers.recv()
    except (EOFError, OSError):  # an OSError means that only a part of the answer was received
        process.join()
        code = process.exitcode or 0
        ended = f"exit status {code}; a script calls hgld under `if __name__ == '__main__':`"
        raise ProcessEndedError(f"{signal.strsignal(-code)}" if code < 0 else ended) from None
    finally:
        process.kill()
        process.join()
        answers.close()
    if error is not None:
        raise error
    return result


def _answer(work: Callable[[Any], Any], argument: Any, memory: int, answer: Connection) -> None:
    """Send the result of a call, or its error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which then kills this process
    try:
        _limit_memory(memory)
        told = work(argument), None
    except Exception as error:  # noqa: BLE001  # the parent raises this error again
        told = None, error
    answer.send(told)


def _limit_memory(more: int) -> None:
    """Limit the bytes that this process may still allocate (Linux only)."""
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        before, most = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, OSError):  # the system is not Linux: only the machine's memory limits the process
        return
    limit = used + more if before == resource.RLIM_INFINITY else min(used + more, before)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def worker_died(unit: Unit, why: str) -> HgldError:
    """Return the error of a unit whose worker died :data:`ATTEMPTS` times."""
    return HgldError(
        f"a worker process died {ATTEMPTS} times at {unit.name} ({why}), most likely for lack of memory. "
        "Finished work is kept: run the same command again with fewer --workers."
    )


def lacks_memory(unit: Unit) -> HgldError:
    """Return the error of a unit that ran out of memory."""
    return HgldError(
        f"there is not enough memory for {unit.name}. Finished work is kept: run the same command again with fewer "
        "--workers, or with more memory."
    )


class _SupervisedPool(Generic[_Unit, _Result]):
    """A pool that is rebuilt when a worker dies; then the units that may have killed it run one at a time."""

    def __init__(self, work: Callable[[_Unit], _Result], processes: int) -> None:
        self.work, self.processes = work, processes
        self.waiting: deque[_Unit] = deque()
        self.suspects: deque[_Unit] = deque()
        self.running: dict[Future[_Result], _Unit] = {}
        self.lost: Counter[str] = Counter()

    def run(self, units: Sequence[_Unit], done: Callable[[_Unit, _Result], None]) -> None:
        self.waiting.extend(units)
        self._start()
        try:
            while self._submit():
                finished, _ = wait(self.running, return_when=FIRST_COMPLETED)
                for future in finished:
                    unit = self.running.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool:
                        self._recover([unit, *self.running.values()])
                        break
                    except MemoryError as error:
                        raise lacks_memory(unit) from error
                    done(unit, result)
        finally:
            self._stop()

    def _submit(self) -> bool:
        """Hand units to the pool; return True if any unit is running."""
        source, most = (self.suspects, 1) if self.suspects else (self.waiting, _UNITS_AHEAD * self.processes)
        while source and len(self.running) < most:
            unit = source.popleft()
            try:
                self.running[self.pool.submit(self.work, unit)] = unit
            except BrokenProcessPool:
                self._recover([unit, *self.running.values()])
                return self._submit()
        return bool(self.running)

    def _recover(self, lost: Sequence[_Unit]) -> None:
        if len(lost) == 1:  # if several units were running, any of them may have killed the worker
            self.lost[lost[0].name] += 1
            if self.lost[lost[0].name] == ATTEMPTS:
                raise worker_died(lost[0], "killed")
        self.running.clear()
        self.suspects.extend(lost)
        self._stop()
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context(START)
        self.reader, self.writer = context.Pipe(duplex=False)
        self.pool = ProcessPoolExecutor(self.processes, context, initializer=_set_up_worker, initargs=(self.reader,))

    def _stop(self) -> None:
        """End the workers at once, which is safe because an unfinished unit leaves no file."""
        self.writer.close()
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.reader.close()


def _set_up_worker(parent: Connection) -> None:
    """Set up a worker process, which ends with its parent, ignores Ctrl-C, and uses one core."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # the first unit imports polars, which then reads this variable
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    import cv2

    cv2.setNumThreads(1)


def _exit_with_parent(parent: Connection) -> None:
    """End this process when the pipe's other end closes, at the latest when the parent dies."""
    try:
        parent.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


# -- Ray: all machines of the cluster need the same folders at the same paths -----------------------------------------


def run_on_ray(
    work: Callable[[_Unit], _Result],
    units: Sequence[_Unit],
    done: Callable[[_Unit, _Result], None],
    *,
    workers: int,
    address: str,
) -> None:
    """Run all units as Ray tasks; :func:`run_units` describes the arguments.

    Raises:
        MissingResourceError: Ray is not installed, or no cluster answers at the address.
        HgldError: a unit raised an error, or a unit's worker died :data:`ATTEMPTS` times.
    """
    with _cluster(workers, address) as ray:
        cores = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        task = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(work)
        waiting, running = list(reversed(units)), {}
        while waiting or running:
            most = workers or _UNITS_AHEAD * cores
            while waiting and len(running) < most:
                unit = waiting.pop()
                running[task.remote(unit)] = unit
            (finished, *_), _ = ray.wait(list(running), num_returns=1)
            unit = running.pop(finished)
            done(unit, _result(ray, finished, unit))


def _result(ray: Any, reference: Any, unit: Unit) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HgldError):
            raise error.cause from error
        if isinstance(error.cause, MemoryError):
            raise lacks_memory(unit) from error
        raise
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        raise worker_died(unit, type(error).__name__) from error


@contextmanager
def _cluster(workers: int, address: str) -> "Iterator[Any]":
    """Connect Ray to the cluster at ``address``, or to a new cluster that lives as long as this context."""
    with optional_dependency("ray", "--executor ray"):
        import ray
    if ray.is_initialized():
        yield ray
        return
    new = {} if address else {"num_cpus": workers or None, "include_dashboard": False}
    own, is_main = signal.getsignal(signal.SIGTERM), threading.current_thread() is threading.main_thread()

    def keep_handler() -> None:
        if is_main:
            signal.signal(signal.SIGTERM, own)

    try:
        try:
            ray.init(address or "local", log_to_driver=False, configure_logging=False, **new)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise MissingResourceError(f"no Ray cluster could be reached or started ({error}).") from error
        except SystemExit:  # from the handler that ray.init sets
            keep_handler()
            signal.raise_signal(signal.SIGTERM)
            raise
        keep_handler()
        yield ray
    finally:
        ray.shutdown()
        keep_handler()  # ray.shutdown sets the default
