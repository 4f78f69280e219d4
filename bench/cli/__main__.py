"""``python -m bench.cli``: the ``mltcp-bench`` command."""

import sys

from bench.cli.main import main

sys.exit(main())
