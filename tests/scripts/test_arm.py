"""The tools that emulate an ARM processor are named if they are missing."""

import shutil
from pathlib import Path

import arm
import pytest


def test_tools_that_are_missing_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: tool if tool == "dpkg-deb" else None)
    monkeypatch.setattr(arm, "ARM_DIR", Path("no-such-folder"))
    with pytest.raises(SystemExit) as ended:
        arm.main([])
    assert ended.value.code == (
        "arm.py: no qemu-aarch64-static, aarch64-linux-gnu-g++, debootstrap here; "
        "apt-get install qemu-user-static g++-aarch64-linux-gnu debootstrap"
    )
