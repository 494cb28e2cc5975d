import sys

from . import main

try:
    main()
except KeyboardInterrupt:
    sys.exit("interrupted: the same command begins again")
