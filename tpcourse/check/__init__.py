"""Checks of exercises and lessons: values, communication, memory or overlap; feedback names the misconception."""

from __future__ import annotations

from tpcourse.check.layout import each, split, whole
from tpcourse.check.predict import prediction
from tpcourse.check.report import CheckFailed
from tpcourse.check.runner import exercise
from tpcourse.check.sameness import same

__all__ = ["CheckFailed", "each", "exercise", "prediction", "same", "split", "whole"]
