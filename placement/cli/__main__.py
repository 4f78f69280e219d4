"""``python -m placement.cli`` runs the ``mltcp-placement`` command."""

import sys

from placement.cli.main import main

sys.exit(main())
