"""The harness of the plugin template, for suites that are tried on the memory queue."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from console.testing import Harness, MemoryQueue, memory_queue

TEMPLATE = Path(__file__).parents[2] / "docs/plugin_template/test_my_queue.py"


def harness(kind: type[MemoryQueue] = MemoryQueue) -> Harness:
    """As the template makes it, where a copy of the queue is called my_queue."""
    spec = spec_from_file_location("template_of_a_plugins_test", TEMPLATE)
    assert spec
    assert spec.loader
    template = module_from_spec(spec)
    sys.modules["my_queue"] = memory_queue
    spec.loader.exec_module(template)
    made = template.make(kind)
    assert isinstance(made, Harness)
    return made
