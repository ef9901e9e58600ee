"""Imports every module of the installed mrv2 and fails if one comes from outside this environment."""

import importlib
import pkgutil
import sys
from pathlib import Path

import mrv2

names = sorted(module.name for module in pkgutil.walk_packages(mrv2.__path__, "mrv2."))
outside = []
for name in names:
    module = importlib.import_module(name)
    if not Path(module.__file__).is_relative_to(sys.prefix):
        outside.append(f"{name} comes from {module.__file__}")
print("\n".join(outside) or f"{len(names)} modules of mrv2 imported from {sys.prefix}")
sys.exit(1 if outside or not names else 0)
