"""The version of this package, which plans and releases carry, and what is said about files of another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from veilset.errors import ArtifactError, ConfigError, OtherTensors, VeilsetError

__version__ = "0.1.0"


@contextmanager
def read_as_ours(what: str, record: Mapping[str, Any], kind: type[VeilsetError] = ArtifactError) -> Iterator[None]:
    """Around the reading of a file that other code may have written in another shape, as `record`, its content, says.

    Raises: `kind`, with the version that wrote it, where it is not as this version would have written it. All other
      complaints pass unchanged: they are about what no version writes.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        found = f"no {error}" if isinstance(error, KeyError) else f"{error!r}"
        raise _unlike_ours(kind, what, found, record) from error
    except (ConfigError, OtherTensors) as error:
        raise _unlike_ours(kind, what, f"{error.found}, not {error.expected}", record) from error


def _unlike_ours(kind: type[VeilsetError], what: str, found: str, record: Mapping[str, Any]) -> VeilsetError:
    version = record.get("veilset")
    writer = f"Veilset {version!r:.30}" if version else "a version that it does not name"
    return kind(
        f"{what} as Veilset {__version__} writes it",
        f"{found}; it was written by {writer}, with other settings or other code",
        "Use the version that wrote it, or make it again with this one. If this one wrote it, it was changed since: do "
        "not trust it.",
    )
