"""What is said of releases is what the workflows and the constraints do."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
CLASSIFIER = "Programming Language :: Python :: 3."


def workflow(name: str) -> Any:
    """A workflow's document."""
    return yaml.safe_load(
        (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    )


def test_each_python_is_tested_with_the_lowest_and_the_newest_versions() -> None:
    """By `.ci/run`, on the Pythons that the package says it supports."""
    job = workflow("tests")["jobs"]["run"]
    pythons = [
        classifier.rpartition(" ")[2]
        for classifier in PROJECT["classifiers"]
        if classifier.startswith(CLASSIFIER)
    ]
    assert job["strategy"]["matrix"] == {"python": pythons, "dependencies": ["newest", "lowest"]}
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]


def test_each_mongodb_of_the_table_is_tested_in_its_image() -> None:
    """By the `mongod` of the image, which the tests find on the PATH; the page says that the workflow has it."""
    job = workflow("tests")["jobs"]["servers"]
    versions = job["strategy"]["matrix"]["mongodb"]
    assert versions == ["5.0", "6.0", "7.0", "8.0"]
    assert job["container"]["image"] == "mongo:${{ matrix.mongodb }}"
    runs = [step["run"] for step in job["steps"] if "pytest" in step.get("run", "")]
    assert any(run.endswith("tests/mongo") for run in runs)
    rows = re.findall(
        r"^\| MongoDB ([\d., ]+) \|", PAGE.partition("\n## Servers\n")[2], re.MULTILINE
    )
    assert {version for row in rows for version in row.split(", ")} >= set(versions)


def test_only_a_tested_tag_is_published() -> None:
    """After all tests and the build, without a stored token, from an environment with rules of its own."""
    document = workflow("publish")
    assert document[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as True
    job = document["jobs"]["publish"]
    assert (job["needs"], job["environment"]) == (["tests", "build"], "release")
    assert job["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "publish.yml").read_text(
        encoding="utf-8"
    )


def test_the_lowest_versions_of_the_table_are_those_that_are_installed() -> None:
    """Each constraint stands in a row of the page."""
    rows = re.findall(r"^\| ([\w, -]+) \| ([\d., ]+) \|", PAGE, re.MULTILINE)
    said = {
        name.lower(): version
        for names, versions in rows
        for name, version in zip(names.split(", "), versions.split(", "), strict=True)
    }
    lines = (ROOT / ".ci" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    installed = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    assert said == {**installed, "mongodb": "6.0.5"}
