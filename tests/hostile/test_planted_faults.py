"""The list of planted faults, its table, and how their functions are found, without planting any."""

import gc
import importlib.util
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_list_names_faults_once_and_tests_that_are_there():
    module = _script()
    faults = module.read_faults()
    assert len(faults) >= 200 and len({fault.key for fault in faults}) == len(faults)
    assert all((ROOT / fault.file).is_file() for fault in faults)
    for name in {name for fault in faults for name in fault.tests}:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text() if test else (ROOT / file).is_file(), name
    assert all(fault.search != fault.replace for fault in faults)
    assert all(fault.planted() for fault in faults)  # which refuses a text that does not stand there once
    assert set(module.HARMLESS) <= {fault.key for fault in faults}


def test_the_table_of_the_documents_is_what_was_recorded():
    module = _script()
    document = module.DOCUMENT.read_text()
    rows = json.loads(module.RESULT.read_text())["faults"] if module.RESULT.exists() else []
    assert module.render(document, rows) == document
    changed = [{"key": "x", "file": "a/b.py", "replace": "c", "caught": False}]
    assert "| `a` | 1 | 0 |" in module.render(document, changed)


def test_functions_are_found_though_what_was_imported_is_frozen():
    """Else every fault has a process of its own, which imports everything anew."""
    gc.freeze()
    try:
        assert test_functions_are_found_though_what_was_imported_is_frozen in _script().functions_by_file()[__file__]
    finally:
        gc.freeze()


def _script():
    spec = importlib.util.spec_from_file_location("planted_faults", ROOT / "benchmarks" / "planted_faults.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["planted_faults"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
