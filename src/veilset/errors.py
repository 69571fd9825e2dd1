"""One exception tree. Every message says what was expected, what was found and what to do."""


class VeilsetError(Exception):
    """Base of every error Veilset raises on purpose.

    The three parts are kept apart so that a caller can show them as it likes; ``str()`` joins them.
    """

    def __init__(self, expected: str, found: str, todo: str) -> None:
        super().__init__(expected, found, todo)
        self.expected = expected
        self.found = found
        self.todo = todo

    def __str__(self) -> str:
        return f"expected {self.expected}\n  found {self.found}\n  {self.todo}"


class ConfigError(VeilsetError):
    """A setting, option or argument is not usable."""


class MissingExtra(VeilsetError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"the package '{package}' for {purpose}",
            "it is not installed",
            f"Install it with: pip install 'veilset[{extra}]'" if extra else f"Install it with: pip install {package}",
        )


class DataError(VeilsetError):
    """The image collection cannot be read as asked."""


class OtherClass(DataError):
    """An image is of none of the classes that were asked for."""


class PrivacyError(VeilsetError):
    """Base of the kernel's errors: nothing was released when one of these is raised."""


class NotBounded(PrivacyError):
    """A value without a proven norm bound was offered for release."""


class UnsupportedEvent(PrivacyError):
    """The accountant has no proof for this combination of events."""


class MixedAdjacency(PrivacyError):
    """Claims for different neighbouring relations, units or deltas were combined."""


class BudgetExceeded(PrivacyError):
    """A release would cost more than the plan and its crash reserve, or than the data set's budget."""


class PlanMismatch(PrivacyError):
    """What a fit released is not what its plan foresaw."""


class LedgerError(PrivacyError):
    """The ledger cannot be read, written or trusted."""


class ArtifactError(VeilsetError):
    """A model folder is incomplete, changed or not of the declared shape."""


class OtherTensors(ArtifactError):
    """A file holds other tensors than the settings beside it stand for."""


class VaultLeak(ArtifactError):
    """Something from the vault side was about to be written into a release."""


class RunError(VeilsetError):
    """A run folder cannot be created, read or continued."""
