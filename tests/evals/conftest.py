"""What several tests of the scorers need."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def as_in_production() -> Iterator[None]:
    """Without the type checks that tests run under, which would refuse before we do."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
