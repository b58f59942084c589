"""The version, for modules that must not import the package itself."""

__version__ = "0.3.0.dev0"
