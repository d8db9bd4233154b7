"""`python -m minitrans` is `minitrans`."""

import sys

from minitrans.cli import main

sys.exit(main())
