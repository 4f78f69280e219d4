"""``python -m mltcp.cli``: the ``mltcp`` command."""

import sys

from mltcp.cli.main import main

sys.exit(main())
