"""Plain and residual networks that resprobe trains and rebuilds."""

from resprobe.networks.construction import deepen
from resprobe.networks.residual import Architecture, ResidualNetwork, build, parse_architecture

__all__ = ["Architecture", "ResidualNetwork", "build", "deepen", "parse_architecture"]
