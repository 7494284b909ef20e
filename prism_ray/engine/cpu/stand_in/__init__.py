"""A directory for ``sys.path``, not a package to import: it holds a stand-in named ``sgl_kernel``."""
