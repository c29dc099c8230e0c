"""Serve the sources: python -m sources [PORT]"""

import sys

from sources.server import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]) if len(sys.argv) > 1 else 8001)
