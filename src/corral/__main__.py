"""`python -m corral` is the command `corral`."""

import sys

from corral.cli import main

sys.exit(main())
