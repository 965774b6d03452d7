"""Print the claims with their verdicts."""

import sys

from autotune.planning.claims import claims, to_markdown, to_text

if __name__ == "__main__":
    write = to_markdown if "--markdown" in sys.argv[1:] else to_text
    sys.stdout.write(write(claims()))
