"""`python -m vargen`, where the command `vargen` is not on the path. Belongs here: nothing more."""

import sys

from vargen.cli import main

sys.exit(main())
