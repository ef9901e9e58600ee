"""Other people's projects, and pytest run on them in this process."""

import textwrap

import pytest

# Each inner session forgets the modules that it imported first; of torch and of ours there must be one copy.
import mrv2.checks.pytest_plugin.session  # noqa: F401
from mrv2.checks.sync.virtual import sync_trap

from .projects import ENGINE


@pytest.fixture(scope="session", autouse=True)
def all_is_imported():
    with sync_trap():
        pass


@pytest.fixture
def project(pytester):
    """Writes a project with the engine, its settings and one module of tests."""

    def write(tests, settings="", ini=""):
        head = "[tool.pytest.ini_options]\npythonpath = ['.']\naddopts = '--strict-markers'\n"
        text = "\n".join(map(textwrap.dedent, (head, ini, "[tool.mrv2]\n", settings)))
        pytester.makepyprojecttoml(text)
        pytester.makepyfile(engine=ENGINE, test_it="import engine\nimport pytest\n" + textwrap.dedent(tests))
        return pytester

    return write
