"""Units of work as tasks of a Ray cluster, whose machines must see the same folders by the same paths."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from hgld.errors import HgldError, MissingResourceError
from pipelines.executor import ATTEMPTS, Unit, died_again

if TYPE_CHECKING:
    from collections.abc import Iterator

_TASKS_AHEAD = 2  # a core of the cluster
_Unit = TypeVar("_Unit", bound=Unit)
_Result = TypeVar("_Result")


def run_on_ray(
    work: Callable[[_Unit], _Result],
    units: Sequence[_Unit],
    done: Callable[[_Unit, _Result], None],
    *,
    workers: int,
    address: str,
) -> None:
    """Do all units as Ray tasks; see :func:`pipelines.executor.run_units`.

    Raises:
        MissingResourceError: Ray is not installed, or no cluster answers at the address.
        HgldError: what a unit raised, or a unit whose worker died time after time.
    """
    with _cluster(workers, address) as ray:
        cores = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        task = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(work)
        waiting, running = list(reversed(units)), {}
        while waiting or running:
            most = workers or _TASKS_AHEAD * cores
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
        raise
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        raise died_again(unit, type(error).__name__) from error


@contextmanager
def _cluster(workers: int, address: str) -> "Iterator[Any]":
    """Ray, connected to the cluster at ``address`` or to one that lives as long as this context."""
    try:
        import ray
    except ImportError as error:
        raise MissingResourceError(
            "--executor ray needs Ray, which is not installed: pip install 'hgld[ray]'."
        ) from error
    if ray.is_initialized():
        yield ray
        return
    try:
        if address:
            ray.init(address, log_to_driver=False, configure_logging=False)
        else:
            ray.init(
                "local", num_cpus=workers or None, include_dashboard=False, log_to_driver=False, configure_logging=False
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise MissingResourceError(f"no Ray cluster could be reached or started ({error}).") from error
    try:
        yield ray
    finally:
        ray.shutdown()
