"""`python -m lastkey [spark options] JOB ARGS`."""

from lastkey.jobs.__main__ import end, main

if __name__ == "__main__":
    end(main())
