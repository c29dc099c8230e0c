"""Environments of the peers: one folder each, so that none of them chooses the packages of another."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.products import Product


def default_folder() -> Path:
    """Where environments live unless said otherwise."""
    return Path(os.environ.get("BENCH_VENVS") or Path(tempfile.gettempdir(), "relevo-bench-venvs"))


def program_of(product: Product, venvs: Path) -> str | None:
    """The interpreter that runs a product, or None where it is not installed."""
    if product.is_ours:
        return sys.executable
    if product.is_reference:
        node = shutil.which("node")
        return node if node and modules_of(product, venvs).joinpath(product.packages[-1]).is_dir() else None
    python = venvs / (product.venv or product.name) / "bin" / "python"
    return str(python) if python.exists() else None


def modules_of(product: Product, venvs: Path) -> Path:
    """Where the modules of a Node product are."""
    return venvs / product.name / "node_modules"


def install(product: Product, venvs: Path) -> str | None:
    """Make the environment of a product unless it is there; why it could not be made, or None."""
    if program_of(product, venvs):
        return None
    folder = venvs / (product.venv or product.name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"{product.name}: {' '.join(product.packages)} into {folder}", file=sys.stderr)
    try:
        if product.is_reference:
            _npm(folder, product.packages)
        else:
            _pip(folder, product.packages)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(folder, ignore_errors=True)  # half an environment would look like a whole one
        return f"{product.name} could not be installed: {error}"
    return None


def _pip(folder: Path, packages: tuple[str, ...]) -> None:
    python = str(folder / "bin" / "python")
    if importlib.util.find_spec("pip"):  # ours can fill any environment, also where ensurepip is missing
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", python]
    else:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [python, "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "--disable-pip-version-check", *packages], check=True)


def _npm(folder: Path, packages: tuple[str, ...]) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise FileNotFoundError("it needs Node.js with npm on PATH")
    folder.mkdir()
    subprocess.run([npm, "install", "--silent", "--prefix", str(folder), *packages], check=True, stdout=sys.stderr)
