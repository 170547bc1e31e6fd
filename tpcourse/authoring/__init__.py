"""From the sources in percent format to lessons, exercises and solutions: build, check, lint."""

from tpcourse.authoring.build import Result, build
from tpcourse.authoring.lint import lint, lint_code
from tpcourse.authoring.main import main
from tpcourse.authoring.notebook import AuthoringError

__all__ = ["AuthoringError", "Result", "build", "lint", "lint_code", "main"]
