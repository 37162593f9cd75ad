"""What every training method keeps to; methods are found by their classes and by the files of conf/method."""

import importlib
import inspect
import pkgutil
from dataclasses import dataclass, fields, replace

import pytest

from tests.methods import METHODS, methods_of_conf
from tests.models import fitting, form, mixed_rows, unified
from unified_lm import methods
from unified_lm.methods.base import ChunkOutput, Method
from unified_lm.packing import collate


def subclasses() -> set[type[Method]]:
    names = [f"{methods.__name__}.{found.name}" for found in pkgutil.iter_modules(methods.__path__)]
    classes = [cls for name in names for _, cls in inspect.getmembers(importlib.import_module(name), inspect.isclass)]
    return {cls for cls in classes if issubclass(cls, Method) and cls is not Method}


def test_every_method_has_a_file_in_conf_and_every_file_is_a_method():
    assert {type(method) for method in methods_of_conf().values()} == subclasses()


@pytest.mark.parametrize("name", METHODS)
def test_weights_are_those_of_the_terms_and_counts_those_of_the_token_sums(name):
    method = METHODS[name]
    model = fitting(method, double=True)
    batch = collate(method.sequences(mixed_rows(), form(model)))
    output = method.read(model.hidden_states(batch), batch, model, tokens=True)
    terms = set(method.objective(output.vectors) if output.vectors else ()) | set(output.token_sums)
    assert terms and terms <= set(method.weights) == set(method.weights_at(0))
    assert set(output.token_sums) == set(method.counts(batch))
    assert method.next_token_term in {None, *method.weights}


@pytest.mark.parametrize("value", [0.0, -0.05, float("nan")])
@pytest.mark.parametrize(
    ("name", "setting"),
    [(n, one.name) for n, m in METHODS.items() for one in fields(m) if one.name.endswith("temperature")],
)
def test_a_temperature_that_is_not_above_zero_is_refused(name, setting, value):
    with pytest.raises(ValueError, match=rf"method\.{setting}={value} divides by nothing; use a value above 0"):
        replace(METHODS[name], **{setting: value})


def test_methods_without_training_have_no_terms():
    untrained = [method for method in methods_of_conf().values() if not method.trains]
    maker = form(unified())
    assert untrained and all(not method.weights for method in untrained)
    assert all(not method.sequences(mixed_rows(), maker) for method in untrained)


def test_a_setting_in_place_of_a_hook_stays_required():
    @dataclass(frozen=True, kw_only=True)
    class WithSlots(Method):
        slots: int
        readout: str = "mean"
        weights = {}  # noqa: RUF012

        def sequences(self, rows, form):
            return []

        def read(self, states, batch, model, *, tokens):
            return ChunkOutput()

    assert WithSlots(slots=2).slots == 2 and WithSlots.slots == Method.slots == 0
    with pytest.raises(TypeError, match="slots"):
        WithSlots()
