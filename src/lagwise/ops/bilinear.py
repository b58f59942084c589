"""The former name of `lagwise.ops.operation`."""

from lagwise.ops.operation import *  # noqa: F403
