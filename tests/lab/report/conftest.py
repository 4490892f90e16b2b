"""Makes the module of examples beside the tests importable: tests are imported by their path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
