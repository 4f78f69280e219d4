"""Marks tests that repeat what others show on more of a published table."""

import os

import pytest

ALL = os.environ.get("MLTCP_TEST_PUBLISHED") == "all"
everything = pytest.mark.skipif(not ALL, reason="minutes; MLTCP_TEST_PUBLISHED=all runs it")
