"""The manifest of rights on the page about backends: what is asked for, and no more than it names."""

import re
from pathlib import Path

import yaml

from espnet3_parallel.kubernetes import _RIGHTS

PAGE = Path(__file__).parents[2] / "docs/backends.md"


def test_the_role_on_the_page_gives_the_rights_that_doctor_asks_for() -> None:
    """Each right of a run is in the manifest, nothing in it is a wildcard, and a secret comes by `secretKeyRef`."""
    blocks = re.findall(r"```yaml\n(apiVersion: rbac[^`]*)```", PAGE.read_text())
    role, binding = map(yaml.safe_load, blocks)
    given = {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert {right for rights in _RIGHTS.values() for right in rights} <= given
    assert not any("*" in right for right in given)
    assert not any(resource in ("secrets", "pods/exec") for _, _, resource in given)
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert "secretKeyRef" in PAGE.read_text()
